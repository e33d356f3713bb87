"""The list of name servers, from wherever the operator keeps it: flags, a file, the DNS, an address server.

It knows no name server, only where they are.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import structlog

from broker_agent.timing import JOIN_SECONDS, PeriodicThread, Timing
from namesrv_common.backoff import Backoff
from namesrv_common.endpoints import Endpoint, is_ip_address, parse_endpoints, preferred_addresses
from namesrv_common.files.regular_files import open_regular
from namesrv_common.files.watched_file import CHECK_SECONDS, WatchedFile

# The forms in which name servers are named: a list of ``host:port``, a file of them, the URL of an address server.

FILE_PREFIX = "file:"
"""What comes before the path of a file that holds the list."""
MAX_NAME_SERVERS = 64
"""Most name servers: each costs a connection and two threads, and a wrong list must not exhaust the machine."""
MAX_LIST_BYTES = 64 * 1024
"""Longest text of a list that is read from a file or an address server: a wrong one must not fill the memory."""


def check_namesrv(texts: Sequence[str]) -> list[str]:
    """Checks a setting that names the name servers and writes it in one way.

    Args:
        texts: ``host:port`` lists, as many as one likes, and at most one URL of an address server; or ``file:`` and the
            path of a file, alone.

    Raises:
        ValueError: The setting has another form. The message names the wrong part and the rule that it breaks.
    """
    if not any(text.strip().startswith(FILE_PREFIX) for text in texts):
        urls = [split_address_server(text).geturl() for text in texts if "://" in text]
        if len(urls) > 1:
            raise ValueError("two address servers cannot both say which name servers there are")
        lists = [text for text in texts if "://" not in text]
        names = parse_endpoints(lists) if lists or not urls else ()
        return [*map(str, _bounded(names)), *urls]
    if len(texts) > 1:
        raise ValueError(f"{FILE_PREFIX} stands alone: the file holds the whole list")
    path = texts[0].strip().removeprefix(FILE_PREFIX)
    if not path:
        raise ValueError(f"{texts[0]!r} names no file: write {FILE_PREFIX}/path/of/the/list")
    return [FILE_PREFIX + path]


def split_address_server(url: str) -> SplitResult:
    """Splits the URL of an address server. Raises ValueError, with what is wrong, if it is no http or https URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"URL {url[:80]!r}: {error!s:.200}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"URL {url[:80]!r} is not of the form http://host[:port]/path or https://host[:port]/path")
    if parts.username is not None or parts.fragment:
        raise ValueError(
            f"URL of host {parts.hostname!r:.80} has a user or a fragment: neither is sent to address servers"
        )
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError(f"URL {url[:80]!r} has a blank or a character beyond ASCII: write it percent-encoded")
    return parts


def parse_list(content: bytes) -> tuple[Endpoint, ...]:
    """Parses the content of a file or the answer of an address server.

    One line or several, with any separator, also at the end, as address servers write it; ``#`` starts a comment.

    Raises:
        ValueError: It is too long, no text, or not a list of at most ``MAX_NAME_SERVERS`` addresses.
    """
    if len(content) > MAX_LIST_BYTES:
        raise ValueError(f"the list has more than {MAX_LIST_BYTES} bytes")
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError(f"the list has byte {content[error.start]:#04x}, which is not ASCII") from error
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return _bounded(parse_endpoints(line.rstrip(";, ") for line in lines if line))


def _bounded(names: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    if len(names) > MAX_NAME_SERVERS:
        raise ValueError(f"the endpoint list has {len(names)} elements, at most {MAX_NAME_SERVERS}")
    return names


# Lists of name servers that change while the agent runs: a file, and an address server.

FIRST_FETCH_SECONDS = 10.0
"""Time from the start to the first question to the address server (RocketMQ: fetchNameServerAddr)."""
FETCH_PERIOD_SECONDS = 120.0
"""Time between two questions to it (RocketMQ: fetchNameServerAddr)."""
FETCH_TIMEOUT_SECONDS = 3.0
"""Time to connect to the address server, and for each read of its answer (RocketMQ: 3 s). A server that sends a byte
now and then holds the thread that asks, and nothing else: the list stays as it is."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ListSource:
    """A list that changes while the agent runs."""

    where: str
    """Its path or URL, for the log."""
    read: Callable[[], tuple[Endpoint, ...]]
    """Reads the list; raises ValueError, OSError or HTTPException."""
    pause_seconds: Callable[[], float]
    """Returns the time to the next read."""
    first_delay_seconds: float = 0.0
    """The time to the first read."""


def list_file(path: Path) -> ListSource:
    """A file that holds the list and is watched, also through the links that a mounted ConfigMap consists of.

    Raises:
        ValueError: The file cannot be read or is no list; the error names the file.
    """

    def load() -> tuple[Endpoint, ...]:
        try:
            with open_regular(path) as opened:
                return parse_list(opened.read(MAX_LIST_BYTES + 1))
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    file = WatchedFile([path], load)

    def read() -> tuple[Endpoint, ...]:
        _, names = file.look()
        if file.problem is not None:
            raise ValueError(file.problem)
        return names

    return ListSource(str(path), read, lambda: CHECK_SECONDS)


def address_server(url: str, timing: Timing) -> ListSource:
    """An HTTP server whose answer is the list (RocketMQ: fetchNameServerAddr). Raises ValueError for another URL."""
    parts = split_address_server(url)
    pause_seconds = partial(timing.jittered, FETCH_PERIOD_SECONDS)
    return ListSource(url, partial(_fetched, parts), pause_seconds, FIRST_FETCH_SECONDS)


def _fetched(url: SplitResult) -> tuple[Endpoint, ...]:
    assert url.hostname is not None
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    with closing(kind(url.hostname, url.port, timeout=FETCH_TIMEOUT_SECONDS)) as connection:
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("GET", target, headers={"Accept": "text/plain"})
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"the address server answered {response.status}, not 200")
        return parse_list(_whole_body(response))


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


# One name of the list and the addresses behind it, looked up again and again.

RESOLVE_PERIOD_SECONDS = 30.0
"""Time between two lookups of a name: a name server that moves is found within it, and the DNS hardly notices."""
RESOLVE_JITTER = 0.2
"""Share of the period that a lookup may come earlier or later, so that a fleet does not ask in one beat."""
GONE_AFTER_LOOKUPS = 2
"""Lookups in a row without an address after which it is given up. Some DNS servers answer with a changing part of their
addresses, and the broker is unregistered from each name server that is given up.
"""
FIRST_RETRY_SECONDS = 1.0
"""Longest wait after the first lookup that failed; it doubles from failure to failure, up to the period."""

Resolve = Callable[[Endpoint], tuple[Endpoint, ...]]
"""Looks a name up; raises OSError if that fails."""


def addresses_of(name: Endpoint) -> tuple[Endpoint, ...]:
    """The addresses behind a name, by the operating system, sorted. Raises OSError if it cannot be resolved."""
    try:
        return preferred_addresses(name.port, socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM))
    except UnicodeError as error:  # Python's error for a label that the DNS cannot carry
        raise OSError(f"{name.host!r} is no name of the DNS: {error}") from error


class ResolvedName(PeriodicThread):
    """The addresses behind a name. A lookup that fails or finds nothing leaves the last ones in force.

    Each name has a thread of its own, so a lookup that hangs blocks no other.
    """

    def __init__(
        self, name: Endpoint, on_change: Callable[[], None], timing: Timing, resolve: Resolve = addresses_of
    ) -> None:
        """Creates it; nothing is looked up before ``start``.

        ``on_change`` is called after each change of the addresses, in this name's thread.
        """
        super().__init__(f"broker-agent-resolve-{name.host}", self._lookup, timing)
        self.addresses: tuple[Endpoint, ...] = ()
        """The addresses in force, sorted; none if none has been found yet."""
        self._name = name
        self._on_change = on_change
        self._backoff = Backoff(FIRST_RETRY_SECONDS, RESOLVE_PERIOD_SECONDS, rng=timing.rng)
        self._resolve = resolve
        self._failures = 0
        self._lacked: dict[Endpoint, int] = {}  # how many lookups in a row an address that is in force was missing
        self.looked_up = threading.Event()
        """Set once the first lookup has succeeded or failed."""

    def _lookup(self) -> float:
        """Looks up once. Returns the seconds to the next time."""
        try:
            found = self._resolve(self._name)
            if not found:
                raise OSError("it has no address")  # noqa: TRY301 - handled like a failed lookup
        except OSError as error:
            if not self._failures:
                kept = [str(address) for address in self.addresses]
                _log.warning("namesrv_name_not_resolved", name=str(self._name), error=str(error), kept=kept)
            self._failures += 1
            self.looked_up.set()
            return self._backoff.after(self._failures)
        if self._failures:
            _log.info("namesrv_name_resolved_again", name=str(self._name), failures=self._failures)
        self._failures = 0
        self._found(found)
        return self._timing.jittered(RESOLVE_PERIOD_SECONDS, RESOLVE_JITTER)

    def _found(self, found: tuple[Endpoint, ...]) -> None:
        self._lacked = {address: self._lacked.get(address, 0) + 1 for address in {*self.addresses} - {*found}}
        kept = {address for address, times in self._lacked.items() if times < GONE_AFTER_LOOKUPS}
        before, self.addresses = self.addresses, tuple(sorted({*found} | kept))
        self.looked_up.set()
        if self.addresses != before:
            addresses = [str(address) for address in self.addresses]
            _log.info("namesrv_name_resolved", name=str(self._name), addresses=addresses)
            self._on_change()


FIRST_LOOKUP_SECONDS = 5.0
"""Time for the first lookups of new names, all at once, before the list continues without those that hang."""


def namesrv_list_of(namesrv: Sequence[str], *, timing: Timing) -> NamesrvList:
    """The list that settings describe.

    Args:
        namesrv: As ``check_namesrv`` takes it. Names in lists are looked up again and again. The answer of an address
            server replaces the lists, first after 10 s, then every 120 s.

    Raises:
        ValueError: The texts break a rule, or the file cannot be read or is no list.
    """
    *lists, last = check_namesrv(namesrv)
    if last.startswith(FILE_PREFIX):
        file = list_file(Path(last.removeprefix(FILE_PREFIX)))
        return NamesrvList(file.read(), file, timing)
    if "://" not in last:
        return NamesrvList(parse_endpoints([*lists, last]), None, timing)
    names = parse_endpoints(lists) if lists else ()
    return NamesrvList(names, address_server(last, timing), timing)


class NamesrvList:
    """The name servers in force: each address behind each name.

    An empty list never replaces one that is not empty: a faulty DNS or address server must not take the broker out of
    every route.
    """

    def __init__(
        self, names: tuple[Endpoint, ...], source: ListSource | None, timing: Timing, resolve: Resolve = addresses_of
    ) -> None:
        """Creates it; nothing is looked up before ``start``. Without a source, the names do not change."""
        self._listed = names  # the last good list
        self._is_bad = False
        self._readers: list[PeriodicThread] = []  # of the source, if there is one
        if source is not None:
            read, delay = partial(self._read, source), source.first_delay_seconds
            self._readers.append(PeriodicThread("broker-agent-namesrv-list", read, timing, delay))
        self._timing = timing
        self._resolve = resolve
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of the list, one call at a time; it must return quickly."""
        self._lock = threading.RLock()  # guards all below; held while the listener is called, to keep the order
        self._names: tuple[Endpoint, ...] = ()
        self._resolved: dict[Endpoint, ResolvedName] = {}  # of those that are no addresses
        self.endpoints: tuple[Endpoint, ...] = ()
        """The name servers in force, in the order of the names; each address once."""
        self._stopped = False
        self._cut = False

    def start(self) -> None:
        """Looks the names up, waits for the first answers, at most 5 s, and follows changes from now on.

        A name that cannot be resolved yet prevents nothing; it joins the list when it can.
        """
        self.take_names(self._listed)
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """Stops calling the listener and ends all threads, in 2 s at most."""
        with self._lock:
            self._stopped = True
            ending = [*self._resolved.values(), *self._readers]
        for item in ending:
            item.cancel()
        deadline = self._timing.clock() + JOIN_SECONDS
        for item in ending:
            item.join(deadline - self._timing.clock())

    def _read(self, source: ListSource) -> float:
        """Reads the list. A bad one leaves the last one in force. Returns the seconds to the next time."""
        try:
            names = source.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._is_bad:
                self._is_bad = True
                problem, kept = str(error) or type(error).__name__, [str(name) for name in self._listed]
                _log.warning("namesrv_list_bad", source=source.where, error=problem[:300], kept=kept)
        else:
            if self._is_bad:
                self._is_bad = False
                _log.info("namesrv_list_ok", source=source.where)
            if names != self._listed:
                self._listed = names
                self.take_names(names)
        return source.pause_seconds()

    def take_names(self, names: tuple[Endpoint, ...]) -> None:
        """Puts other names in force once each new one has been looked up, so that the list is never short."""
        with self._lock:
            if self._stopped:
                return
            before = self._resolved
            hosts = [name for name in names if not is_ip_address(name.host)]
            new = {
                name: ResolvedName(name, self._publish, self._timing, self._resolve)
                for name in hosts
                if name not in before
            }
            self._resolved = {**before, **new}
        for item in new.values():
            item.start()
        deadline = self._timing.clock() + FIRST_LOOKUP_SECONDS
        for item in new.values():
            self._timing.wait(item.looked_up, max(0.0, deadline - self._timing.clock()))
        with self._lock:
            self._resolved = {name: self._resolved[name] for name in hosts}
            self._names = names
            self._publish()
        for name in before.keys() - self._resolved.keys():
            before[name].cancel()

    def _publish(self) -> None:
        with self._lock:
            resolved = self._resolved
            addresses = (resolved[name].addresses if name in resolved else (name,) for name in self._names)
            found = self._bounded(tuple(dict.fromkeys(chain.from_iterable(addresses))))
            if self._stopped or not found or found == self.endpoints:
                return
            self.endpoints = found
            _log.info("namesrv_list", endpoints=[str(endpoint) for endpoint in found])
            self.on_change()

    def _bounded(self, found: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        if len(found) <= MAX_NAME_SERVERS:
            self._cut = False
            return found
        if not self._cut:
            self._cut = True
            _log.warning("namesrv_list_cut", found=len(found), kept=MAX_NAME_SERVERS)
        return found[:MAX_NAME_SERVERS]
