"""Lists of name servers that change while the agent runs: a file, and an address server."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from watchfiles import watch

from broker_agent.namesrv_list.names import (
    MAX_LIST_BYTES,
    decode_list,
    parse_list,
    read_list_file,
    split_address_server,
)
from broker_agent.timing.clock import Timing
from broker_agent.timing.periodic_thread import PeriodicThread, Wait
from groundwork.endpoints import Endpoint

FIRST_FETCH_SECONDS = 10.0
"""Time from the start to the first question to the address server (RocketMQ: fetchNameServerAddr)."""
FETCH_PERIOD_SECONDS = 120.0
"""Time between two questions to it (RocketMQ: fetchNameServerAddr)."""
FETCH_JITTER = 0.1
"""Share of the period that a question may come earlier or later, so that a fleet does not ask in one beat."""
FETCH_TIMEOUT_SECONDS = 3.0
"""Time to connect to the address server, and again for its whole answer (RocketMQ: 3 s)."""
REREAD_MILLIS = 2_000
"""The file is read again at least so often, for file systems that report no changes (network mounts)."""

OnNames = Callable[[tuple[Endpoint, ...]], None]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NameSource(Protocol):
    """A source of the names in force, which reports each change."""

    def start(self, on_names: OnNames) -> None:
        """Calls with each list that differs from the one before, in a thread of the source, from now on."""

    def stop(self) -> None:
        """Ends, without waiting for that."""

    def join(self, seconds: float) -> None:
        """Waits for the end, at most so long."""


class _LastGood:
    """Hands on changes. When a list is bad, it keeps the last good one and logs that once."""

    def __init__(self, source: str, names: tuple[Endpoint, ...]) -> None:
        self._source = source
        self._names = names
        self._last_error: str | None = None

    def take(self, load: Callable[[], tuple[Endpoint, ...]], on_names: OnNames) -> None:
        try:
            names = load()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if self._last_error is None:
                kept = [str(name) for name in self._names]
                self._last_error = str(error) or type(error).__name__
                _log.warning("namesrv_list_bad", source=self._source, error=self._last_error[:300], kept=kept)
            return
        if self._last_error is not None:
            self._last_error = None
            _log.info("namesrv_list_good_again", source=self._source)
        if names != self._names:
            self._names = names
            on_names(names)


class ListFile:
    """A file that holds the list and is watched, also through the links that a mounted ConfigMap consists of."""

    def __init__(self, path: Path, names: tuple[Endpoint, ...]) -> None:
        """Creates it.

        Args:
            path: The file.
            names: The list when it was last read.
        """
        self._path = path
        self._last_good = _LastGood(str(path), names)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, on_names: OnNames) -> None:
        """See ``NameSource``."""
        self._thread = threading.Thread(
            target=self._watch, args=(on_names,), name="broker-agent-namesrv-file", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """See ``NameSource``."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        """See ``NameSource``."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))

    def _watch(self, on_names: OnNames) -> None:
        while not self._stopping.is_set():
            try:
                self._read_after_changes(on_names)
            except (OSError, RuntimeError) as error:  # the folder is gone, or the machine has no watches left
                _log.debug("namesrv_file_not_watched", path=str(self._path), error=str(error))
                self._last_good.take(lambda: read_list_file(self._path), on_names)
                self._stopping.wait(REREAD_MILLIS / 1000)

    def _read_after_changes(self, on_names: OnNames) -> None:
        # The folder and not the file, because a file that replaces it by renaming would not be watched.
        changes = watch(
            self._path.parent,
            watch_filter=None,
            stop_event=self._stopping,
            debounce=200,
            rust_timeout=REREAD_MILLIS,
            yield_on_timeout=True,
            raise_interrupt=False,
            recursive=False,
        )
        for _ in changes:
            self._last_good.take(lambda: read_list_file(self._path), on_names)


class AddressServer:
    """An HTTP server whose answer is the list (RocketMQ: fetchNameServerAddr)."""

    def __init__(
        self, url: str, names: tuple[Endpoint, ...], timing: Timing, wait: Wait = threading.Event.wait
    ) -> None:
        """Creates it; nobody is asked yet.

        Args:
            url: Where to ask.
            names: The list in force until there is an answer.
            timing: Randomness.
            wait: How to wait between two questions.

        Raises:
            ValueError: The URL is not one of http or https.
        """
        self._url = split_address_server(url)
        self._last_good = _LastGood(url, names)
        self._rng = timing.rng
        self._wait = wait
        self._thread: PeriodicThread | None = None

    def start(self, on_names: OnNames) -> None:
        """See ``NameSource``."""

        def work() -> float:
            self._last_good.take(self._fetch, on_names)
            return FETCH_PERIOD_SECONDS * self._rng.uniform(1 - FETCH_JITTER, 1 + FETCH_JITTER)

        self._thread = PeriodicThread(
            "broker-agent-address-server", work, first_delay=FIRST_FETCH_SECONDS, wait=self._wait
        )
        self._thread.start()

    def stop(self) -> None:
        """See ``NameSource``."""
        if self._thread is not None:
            self._thread.stop()

    def join(self, seconds: float) -> None:
        """See ``NameSource``."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _fetch(self) -> tuple[Endpoint, ...]:
        assert self._url.hostname is not None
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname, self._url.port, timeout=FETCH_TIMEOUT_SECONDS)
        try:
            connection.connect()
            return parse_list(decode_list(self._get(connection)))
        finally:
            connection.close()

    def _get(self, connection: http.client.HTTPConnection) -> bytes:
        """The body of the answer, which must have come as a whole within the timeout.

        The socket's own timeout starts again with each byte, so a server that sends a byte now and then would never
        end.
        """
        late = threading.Event()
        connected = connection.sock

        def cut_off() -> None:
            late.set()
            with suppress(OSError):  # it has been closed meanwhile
                connected.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(FETCH_TIMEOUT_SECONDS, cut_off)
        timer.daemon = True
        timer.start()
        try:
            target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
            connection.request("GET", target, headers={"Accept": "text/plain"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ValueError(f"the address server answered {response.status}, not 200")
            return _whole_body(response)
        finally:
            timer.cancel()
            # Being cut off looks like the end of the answer, or like any error of the network.
            if late.is_set():
                raise TimeoutError(f"the answer was not complete within {FETCH_TIMEOUT_SECONDS:g} s")


def _whole_body(response: http.client.HTTPResponse) -> bytes:
    """The body as long as it was declared to be: the rest of a list that was cut may look like a list.

    Raises:
        ValueError: It is too long, of no declared length, or shorter than that.
        HTTPException: The last of its chunks is missing.
    """
    declared = response.length
    if declared is None and not response.chunked:
        raise ValueError("the answer has neither Content-Length nor chunks: whether it is whole cannot be known")
    if declared is not None and declared > MAX_LIST_BYTES:
        raise ValueError(f"the list has more than {MAX_LIST_BYTES} bytes: {declared} are declared")
    body = response.read(MAX_LIST_BYTES + 1)
    if declared is not None and len(body) < declared:
        raise ValueError(f"the answer was cut after {len(body)} of {declared} bytes")
    return body
