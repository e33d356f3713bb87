"""The probe of the broker itself: an agent that lives on beside a dead broker must not keep it in the routes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from broker_agent.timing import PeriodicThread, Timing, Wait
from groundwork.endpoints import Endpoint
from groundwork.files import open_regular

ProbeKind = Literal["tcp", "pid", "none"]

CONNECT_TIMEOUT_SECONDS = 1.0
"""Time for one attempt to connect; the broker is on this machine or next to it."""
JOIN_SECONDS = 2.0
"""Time for the thread to end."""
_MAX_PID_FILE_BYTES = 64
_MAX_PID = 2**31 - 1

Check = Callable[[], None]
"""Looks at the broker once; raises OSError, with what is wrong, if it is not there."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Rhythm(NamedTuple):
    """How often the broker is looked at, and what its death is: by default it is told within three seconds."""

    period_seconds: float = 1.0
    """Time from one look at the broker to the next."""
    failures: int = 3
    """Failed looks in a row after which a broker counts as dead: one may be a full backlog, or a quick restart."""


THREE_SECONDS = Rhythm()


def broker_probe_of(
    kind: ProbeKind,
    *,
    broker_addr: Endpoint,
    broker_pid: str | None = None,
    timing: Timing,
    rhythm: Rhythm = THREE_SECONDS,
    wait: Wait = threading.Event.wait,
) -> BrokerProbe:
    """The probe that settings describe.

    Args:
        kind: ``tcp`` connects to the broker's address, ``pid`` asks for its process, ``none`` takes it for alive.
        broker_addr: Where the broker listens.
        broker_pid: For ``pid``: the number of the process, or the path of a file that holds it and is read each time.
        rhythm: How often to look, and how many failures are the broker's death.
        wait: How to wait between two looks.

    Raises:
        ValueError: Kind and process contradict each other, or the number cannot be that of a process.
    """
    if (broker_pid is not None) != (kind == "pid"):
        raise ValueError("a process, by number or file, belongs to the probe 'pid', and to no other")
    check: Check | None = None
    if kind == "tcp":
        check = connects_to(broker_addr)
    elif broker_pid is not None:
        check = process_runs(broker_pid)
    return BrokerProbe(check, timing, rhythm, wait)


def connects_to(broker_addr: Endpoint) -> Check:
    """A look that connects to the broker's address and closes the connection again."""

    def check() -> None:
        with socket.create_connection(broker_addr, CONNECT_TIMEOUT_SECONDS) as connection:
            # With nobody listening, a connection to a port that the system gives to clients can reach itself.
            if connection.getsockname() == connection.getpeername():
                raise ConnectionRefusedError("nobody listens")

    return check


def process_runs(broker_pid: str) -> Check:
    """A look that asks whether a process runs.

    Args:
        broker_pid: Its number, or the path of a file that holds the number.

    Raises:
        ValueError: It is a number, but cannot be that of a process.
    """
    if not broker_pid.strip().lstrip("-").isdecimal():
        file = Path(broker_pid)
        return lambda: _check_process(_pid_in(file))
    pid = _pid_of(broker_pid)
    return lambda: _check_process(pid)


class BrokerProbe:
    """Looks at the broker again and again, and says when it has died and when it is back.

    At first the broker counts as alive, unless ``first_look`` has found otherwise.
    """

    def __init__(
        self,
        check: Check | None,
        timing: Timing,
        rhythm: Rhythm = THREE_SECONDS,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Creates it; the broker is not looked at before ``start``.

        Args:
            check: One look; None to take the broker for alive whatever happens.
            rhythm: How often to look, and how many failures are the broker's death.
            wait: How to wait between two looks.
        """
        self._check = check
        self._timing = timing
        self._rhythm = rhythm
        self._failures = 0
        self._up = True
        self._on_down: Callable[[], None] | None = None
        self._on_up: Callable[[], None] | None = None
        self._thread = PeriodicThread("broker-agent-probe", self._look, wait=wait)

    @property
    def is_up(self) -> bool:
        """Whether the broker counts as alive."""
        return self._up

    def first_look(self) -> bool:
        """Looks once, before ``start``, and says whether the broker is there; takes a second at most for an address.

        Here one failure is enough. A broker that starts together with its agent may not listen yet: it is in no route
        that clients could lose, and must not get into one. ``on_up`` is called when it is there.
        """
        if self._check is None:
            return True
        try:
            self._check()
        except OSError as error:
            self._up, self._failures = False, self._rhythm.failures
            _log.warning("broker_not_there_yet", error=str(error))
        return self._up

    def start(self, on_down: Callable[[], None], on_up: Callable[[], None]) -> None:
        """Looks at the broker from now on.

        Args:
            on_down: Called when it has died, in the probe's thread; must return quickly.
            on_up: Called when it is back, likewise.
        """
        if self._check is not None:
            self._on_down, self._on_up = on_down, on_up
            self._thread.start()

    def stop(self) -> None:
        """Calls nothing further and ends the thread, in 2 s at most."""
        self._thread.stop()
        self._thread.join(JOIN_SECONDS)

    def _look(self) -> float:
        """Looks once. Returns the seconds to the next time, counted from the beginning of this one."""
        assert self._check is not None
        started = self._timing.clock()
        try:
            self._check()
        except OSError as error:
            self._failed(error)
        else:
            self._succeeded()
        return max(0.0, self._rhythm.period_seconds - (self._timing.clock() - started))

    def _failed(self, error: OSError) -> None:
        self._failures += 1
        if self._up and self._failures >= self._rhythm.failures:
            self._up = False
            _log.warning("broker_down", failures=self._failures, error=str(error))
            assert self._on_down is not None
            self._on_down()

    def _succeeded(self) -> None:
        self._failures = 0
        if not self._up:
            self._up = True
            _log.info("broker_up")
            assert self._on_up is not None
            self._on_up()


def _pid_in(file: Path) -> int:
    with open_regular(file) as opened:
        content = opened.read(_MAX_PID_FILE_BYTES)
    try:
        return _pid_of(content.decode("ascii"))
    except ValueError as error:
        raise OSError(f"{file}: {error}") from error


def _pid_of(text: str) -> int:
    pid = int(text) if text.strip().isdecimal() else 0
    if not 1 <= pid <= _MAX_PID:
        raise ValueError(f"{text.strip()[:40]!r} is not the number of a process, from 1 to {_MAX_PID}")
    return pid


def _check_process(pid: int) -> None:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return  # it runs, as another user
    except ProcessLookupError as error:
        raise ProcessLookupError(f"process {pid} does not run") from error
    if _is_zombie(pid):
        raise ProcessLookupError(f"process {pid} has ended; its parent has not taken notice yet")


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and only its entry is left. Known on Linux; elsewhere it counts as running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
