"""Names of name servers, resolved to all of their addresses beside the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from concurrent.futures import ThreadPoolExecutor

from groundwork.endpoints import Endpoint
from route_client.source.endpoints import EndpointChooser, EndpointList

REFRESH_SECONDS = 30.0
"""Between two lookups in the DNS (RocketMQ has 120 s: updateNameServerAddrPeriod)."""

_log = logging.getLogger(__name__)


class DnsRefresh:
    """Keeps an EndpointChooser's list as the DNS has it."""

    def __init__(self, endpoints: EndpointList, chooser: EndpointChooser, timeout_seconds: float) -> None:
        """Takes how long to wait for the DNS: the system's own patience may be half a minute."""
        self._endpoints = endpoints
        self._chooser = chooser
        self._timeout_seconds = timeout_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="route-client-dns")

    async def refresh(self) -> None:
        """Resolves all names once. One that cannot be resolved leaves the list as it was."""
        loop = asyncio.get_running_loop()
        resolved = list(self._endpoints.fixed)
        for name in self._endpoints.dns_names:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    addresses = await loop.run_in_executor(self._thread, _addresses_of, name)
            except (OSError, UnicodeError) as error:  # a timeout is an OSError, too
                _log.warning("the name servers of %s stay as they were: %r", name, error)
                return
            resolved += [address for address in addresses if address not in resolved]
        self._chooser.update(resolved)

    async def run(self) -> None:
        """Resolves from time to time, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            await self.refresh()

    def close(self) -> None:
        """Ends the thread, at the latest when the DNS has answered."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _addresses_of(name: Endpoint) -> list[Endpoint]:
    """All addresses of a name, each once; at least one, or OSError."""
    found = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(Endpoint(str(address[0]), name.port) for *_, address in found))
