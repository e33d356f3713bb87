"""The ways between the programs of a run, and what can happen to them: by links of a proxy on loopback."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from groundwork.endpoints import Endpoint
from tests.faults.history import History
from tests.faults.network.proxy import Disturbance, Link, Proxy

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Place:
    """Where a program runs."""

    address: str
    prefix: tuple[str, ...] = ()
    """Of its command."""
    flags: tuple[str, ...] = ()
    """A name server's for listening there."""


class Network(Protocol):
    """Ways between clients and servers by their names. What happens to one is recorded: faults before, ends after."""

    def place(self, name: str) -> Place:
        """Where a program of this name is to run."""
        ...

    def way(self, client: str, server: str, endpoint: Endpoint) -> Endpoint:
        """Where a client finds a server that listens at the endpoint. The same again for the same two."""
        ...

    def cut(self, client: str, server: str, *, up: bool, down: bool) -> None:
        """Loses everything from client to server (up), or back (down), until healed."""
        ...

    def disturb(self, client: str, server: str, disturbance: Disturbance) -> None:
        """Makes the way slow, narrow or lossy until healed."""
        ...

    def reset(self, client: str, server: str) -> None:
        """Resets the connections of the two."""
        ...

    def half_open(self, client: str, server: str, *, server_knows: bool) -> None:
        """Loses the connections of the two for one side only."""
        ...

    def heal(self, client: str, server: str) -> None:
        """Ends what was done to a way."""
        ...


class ProxyNetwork:
    """A network of links of a proxy: for every machine."""

    def __init__(self, proxy: Proxy, history: History) -> None:
        self._proxy = proxy
        self._history = history
        self._links: dict[tuple[str, str], Link] = {}
        self._making = threading.Lock()

    def place(self, name: str) -> Place:
        """On loopback, like everybody."""
        del name
        return Place(LOOPBACK)

    def way(self, client: str, server: str, endpoint: Endpoint) -> Endpoint:
        """The listener of the link; made when asked for first."""
        with self._making:
            if (client, server) not in self._links:
                self._links[client, server] = self._proxy.link(endpoint)
            return self._links[client, server].listen

    def cut(self, client: str, server: str, *, up: bool, down: bool) -> None:
        """Nothing passes."""
        self._note(client, server, "cut", up=up, down=down)
        self._proxy.cut(self._links[client, server], up=up, down=down)

    def disturb(self, client: str, server: str, disturbance: Disturbance) -> None:
        """Chunks come late, lost ones later."""
        self._note(client, server, "disturbed", by=str(disturbance))
        self._proxy.disturb(self._links[client, server], disturbance)

    def reset(self, client: str, server: str) -> None:
        """Both sides are told."""
        self._note(client, server, "reset")
        self._proxy.reset(self._links[client, server])

    def half_open(self, client: str, server: str, *, server_knows: bool) -> None:
        """One side is told."""
        self._note(client, server, "half open", server_knows=server_knows)
        self._proxy.half_open(self._links[client, server], server_knows=server_knows)

    def heal(self, client: str, server: str) -> None:
        """What waited passes now."""
        self._proxy.heal(self._links[client, server])
        self._note(client, server, "healed")

    def _note(self, client: str, server: str, event: str, **details: object) -> None:
        self._history.add("link", client=client, server=server, event=event, **details)
