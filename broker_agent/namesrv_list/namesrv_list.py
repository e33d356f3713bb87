"""The list of name servers in force, with a listener for its changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import structlog

from broker_agent.namesrv_list.name_sources import AddressServer, ListFile, NameSource
from broker_agent.namesrv_list.names import FILE_PREFIX, MAX_NAME_SERVERS, check_namesrv, read_list_file
from broker_agent.namesrv_list.resolved_name import Resolve, ResolvedName, addresses_of
from broker_agent.timing.clock import Timing
from broker_agent.timing.periodic_thread import Wait
from groundwork.endpoints import Endpoint, parse_endpoints

FIRST_LOOKUP_SECONDS = 5.0
"""Time that the first lookups of new names get, all at once, before the list goes on without those that hang."""
JOIN_SECONDS = 2.0
"""Time for all threads together to end."""

Listener = Callable[[tuple[Endpoint, ...]], None]

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def namesrv_list_of(
    namesrv: Sequence[str] = (),
    *,
    address_server: str | None = None,
    timing: Timing,
    resolve: Resolve = addresses_of,
    wait: Wait = threading.Event.wait,
) -> NamesrvList:
    """The list that settings describe.

    Args:
        namesrv: ``host:port`` lists, or ``file:`` and a path, alone; names in them are looked up again and again. May
            be empty if there is an address server.
        address_server: URL whose answer replaces the list, first after 10 s, then every 120 s.
        timing: Clock and randomness.
        resolve: How names are looked up.
        wait: How threads wait.

    Raises:
        ValueError: The settings contradict each other, or the file cannot be read or is no list.
    """
    checked = check_namesrv(namesrv)
    source: NameSource | None = None
    names: tuple[Endpoint, ...] = ()
    if checked and checked[0].startswith(FILE_PREFIX):
        if address_server is not None:
            raise ValueError("a file and an address server cannot both say which name servers there are")
        path = Path(checked[0].removeprefix(FILE_PREFIX))
        names = read_list_file(path)
        source = ListFile(path, names)
    else:
        names = parse_endpoints(checked) if checked else ()
        if address_server is not None:
            source = AddressServer(address_server, names, timing, wait)
    if not names and source is None:
        raise ValueError("neither name servers nor an address server are given")
    return NamesrvList(names, source, timing, resolve, wait)


class NamesrvList:
    """The name servers in force: each address behind each name.

    An empty list never replaces one that is not empty: a faulty DNS or address server must not take the broker out of
    every route.
    """

    def __init__(
        self,
        names: tuple[Endpoint, ...],
        source: NameSource | None,
        timing: Timing,
        resolve: Resolve = addresses_of,
        wait: Wait = threading.Event.wait,
    ) -> None:
        """Creates it; nothing is looked up before ``start``.

        Args:
            names: The names in force at first.
            source: Where they change; None if they do not.
            timing: Clock and randomness.
            resolve: How names are looked up.
            wait: How threads wait between two lookups.
        """
        self._first_names = names
        self._source = source
        self._timing = timing
        self._resolve = resolve
        self._wait = wait
        self._listeners: tuple[Listener, ...] = ()
        self._lock = threading.RLock()  # guards all below; held while listeners are told, so that they see each in turn
        self._names: tuple[ResolvedName, ...] = ()
        self._by_name: dict[Endpoint, ResolvedName] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self._stopped = False
        self._cut = False

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The name servers in force, in the order of the names; each address once."""
        return self._endpoints

    def on_change(self, listener: Listener) -> None:
        """Calls the listener with the new list after each change, one call at a time; it must return quickly.

        There is no call for the list that is in force when ``start`` returns.
        """
        self._listeners = (*self._listeners, listener)

    def start(self) -> None:
        """Looks the names up, waits for the first answers, at most 5 s, and follows changes from now on.

        A name that cannot be resolved yet prevents nothing; it joins the list when it can.
        """
        self._take_names(self._first_names, told=False)
        if self._source is not None:
            self._source.start(self._take_names)

    def stop(self) -> None:
        """Calls no listener any more and ends all threads, in 2 s at most."""
        with self._lock:
            self._stopped = True
            ending: list[NameSource | ResolvedName] = [*self._by_name.values()]
        if self._source is not None:
            ending.append(self._source)
        for item in ending:
            item.stop()
        deadline = self._timing.clock() + JOIN_SECONDS
        for item in ending:
            item.join(deadline - self._timing.clock())

    def _take_names(self, names: tuple[Endpoint, ...], *, told: bool = True) -> None:
        """Puts other names in force once each new one has been looked up, so that the list is never short meanwhile."""
        with self._lock:
            if self._stopped:
                return
            before = self._by_name
            after = {name: before.get(name) or self._resolved(name) for name in names}
            new = [after[name] for name in after.keys() - before.keys()]
            self._by_name = {**before, **after}
        for item in new:
            item.start()
        deadline = self._timing.clock() + FIRST_LOOKUP_SECONDS
        for item in new:
            item.wait_for_first(deadline - self._timing.clock())
        with self._lock:
            self._by_name = after
            self._names = tuple(after.values())
            self._publish(told=told)
        for name in before.keys() - after.keys():
            before[name].stop()

    def _resolved(self, name: Endpoint) -> ResolvedName:
        return ResolvedName(name, self._publish, self._timing, self._resolve, self._wait)

    def _publish(self, *, told: bool = True) -> None:
        with self._lock:
            found = tuple(dict.fromkeys(chain.from_iterable(item.addresses for item in self._names)))
            found = self._bounded(found)
            if self._stopped or not found or found == self._endpoints:
                return
            self._endpoints = found
            _log.info("namesrv_list", endpoints=[str(endpoint) for endpoint in found])
            for listener in self._listeners if told else ():
                listener(found)

    def _bounded(self, found: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        if len(found) <= MAX_NAME_SERVERS:
            self._cut = False
            return found
        if not self._cut:
            self._cut = True
            _log.warning("namesrv_list_cut", found=len(found), kept=MAX_NAME_SERVERS)
        return found[:MAX_NAME_SERVERS]
