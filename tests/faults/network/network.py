"""The ways between the programs of a run, and the faults that happen to them."""

from __future__ import annotations

import threading

from groundwork.endpoints import Endpoint
from tests.faults.history import History
from tests.faults.network.proxy import Disturbance, Link, Proxy


class Network:
    """Ways between clients and servers by their names. Faults are recorded before they begin and after they end."""

    def __init__(self, proxy: Proxy, history: History) -> None:
        self._proxy = proxy
        self._history = history
        self._links: dict[tuple[str, str], Link] = {}
        self._making = threading.Lock()

    def way(self, client: str, server: str, endpoint: Endpoint) -> Endpoint:
        """Returns the address of a link to the endpoint: one link for each client and server."""
        with self._making:
            if (client, server) not in self._links:
                self._links[client, server] = self._proxy.link(endpoint)
            return self._links[client, server].listen

    def cut(self, client: str, server: str, *, up: bool, down: bool) -> None:
        """Loses everything from client to server (up), or back (down), until healed."""
        self._note(client, server, "cut", up=up, down=down)
        self._proxy.cut(self._links[client, server], up=up, down=down)

    def disturb(self, client: str, server: str, disturbance: Disturbance) -> None:
        """Makes the way slow, narrow or lossy until healed."""
        self._note(client, server, "disturbed", by=str(disturbance))
        self._proxy.disturb(self._links[client, server], disturbance)

    def reset(self, client: str, server: str) -> None:
        """Resets the connections of the two."""
        self._note(client, server, "reset")
        self._proxy.reset(self._links[client, server])

    def half_open(self, client: str, server: str, *, server_knows: bool) -> None:
        """Loses the connections of the two for one side only."""
        self._note(client, server, "half open", server_knows=server_knows)
        self._proxy.half_open(self._links[client, server], server_knows=server_knows)

    def heal(self, client: str, server: str) -> None:
        """Ends cuts and disturbances of a way."""
        self._proxy.heal(self._links[client, server])
        self._note(client, server, "healed")

    def _note(self, client: str, server: str, event: str, **details: object) -> None:
        self._history.add("link", client=client, server=server, event=event, **details)
