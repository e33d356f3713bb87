"""One name of the list and the addresses behind it, looked up again and again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import structlog

from broker_agent.timing.clock import Timing
from broker_agent.timing.periodic_thread import PeriodicThread, Wait
from groundwork.backoff import Backoff
from groundwork.endpoints import Endpoint, is_ip_address

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

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def addresses_of(name: Endpoint) -> tuple[Endpoint, ...]:
    """The addresses behind a name, by the operating system, sorted.

    Those of IPv4 if there are any, else those of IPv6: a name with both kinds is nearly always one name server that can
    be reached in two ways, and it need not be registered with twice.

    Raises:
        OSError: The name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # Python's error for a label that the DNS cannot carry
        raise OSError(f"{name.host!r} is no name of the DNS: {error}") from error
    hosts = {(family, str(address[0])) for family, _, _, _, address in found}
    preferred = socket.AF_INET if any(family == socket.AF_INET for family, _ in hosts) else socket.AF_INET6
    return tuple(sorted(Endpoint(host, name.port) for family, host in hosts if family == preferred))


class ResolvedName:
    """The addresses behind a name. A lookup that fails or finds nothing leaves the last ones in force.

    Each name has a thread of its own, so that one whose lookup hangs holds up no other.
    """

    def __init__(
        self,
        name: Endpoint,
        on_change: Callable[[], None],
        timing: Timing,
        resolve: Resolve = addresses_of,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Creates it; nothing is looked up before ``start``.

        Args:
            name: Host name or address, and port. An address stands for itself.
            on_change: Called after each change of the addresses, in this name's thread.
            timing: Clock and randomness.
            resolve: How to look a name up.
            wait: How to wait.
        """
        self._name = name
        self._on_change = on_change
        self._rng = timing.rng
        self._backoff = Backoff(FIRST_RETRY_SECONDS, RESOLVE_PERIOD_SECONDS, rng=timing.rng)
        self._resolve = resolve
        self._wait = wait
        self._failures = 0
        self._lacked: dict[Endpoint, int] = {}  # how many lookups in a row an address that is in force was missing
        self._looked_up = threading.Event()
        self._thread: PeriodicThread | None = None
        self._addresses: tuple[Endpoint, ...] = ()
        if is_ip_address(name.host):
            self._addresses = (name,)
            self._looked_up.set()
        else:
            self._thread = PeriodicThread(f"broker-agent-resolve-{name.host}", self._lookup, wait=wait)

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        """The addresses in force, sorted; none if none has been found yet."""
        return self._addresses

    def start(self) -> None:
        """Looks the name up from now on."""
        if self._thread is not None:
            self._thread.start()

    def wait_for_first(self, seconds: float) -> bool:
        """Waits until the first lookup has succeeded or failed, at most so long. Returns whether it has."""
        return self._wait(self._looked_up, max(0.0, seconds))

    def stop(self) -> None:
        """Looks up nothing further; does not wait for a lookup under way."""
        if self._thread is not None:
            self._thread.stop()

    def join(self, seconds: float) -> None:
        """Waits for the thread to end, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _lookup(self) -> float:
        """Looks up once. Returns the seconds to the next time."""
        try:
            found = self._resolve(self._name)
        except OSError as error:
            return self._failed(error)
        if not found:
            return self._failed(OSError("it has no address"))
        if self._failures:
            _log.info("namesrv_name_resolved_again", name=str(self._name), failures=self._failures)
        self._failures = 0
        self._found(found)
        return RESOLVE_PERIOD_SECONDS * self._rng.uniform(1 - RESOLVE_JITTER, 1 + RESOLVE_JITTER)

    def _found(self, found: tuple[Endpoint, ...]) -> None:
        self._lacked = {address: self._lacked.get(address, 0) + 1 for address in {*self._addresses} - {*found}}
        kept = {address for address, times in self._lacked.items() if times < GONE_AFTER_LOOKUPS}
        before, self._addresses = self._addresses, tuple(sorted({*found} | kept))
        self._looked_up.set()
        if self._addresses != before:
            addresses = [str(address) for address in self._addresses]
            _log.info("namesrv_name_resolved", name=str(self._name), addresses=addresses)
            self._on_change()

    def _failed(self, error: OSError) -> float:
        """Keeps the known addresses and logs that once, not at each failure."""
        if not self._failures:
            kept = [str(address) for address in self._addresses]
            _log.warning("namesrv_name_not_resolved", name=str(self._name), error=str(error), kept=kept)
        self._failures += 1
        self._looked_up.set()
        return self._backoff.after(self._failures)
