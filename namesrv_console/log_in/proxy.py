"""The header by which a proxy in front of the console says who asks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from aiohttp import web

from namesrv_console.log_in.people import is_name

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxy:
    """Believes a header from some addresses, and from no others."""

    def __init__(self, header: str, addresses: Sequence[Network]) -> None:
        self._header = header
        self._addresses = tuple(addresses)

    def name_in(self, request: web.Request) -> str | None:
        """The name that the proxy gives; None if there is none, or who asks is not the proxy."""
        if not self._is_proxy(request.remote):
            return None
        names = request.headers.getall(self._header, [])
        return names[0] if len(names) == 1 and is_name(names[0]) else None

    def _is_proxy(self, address: str | None) -> bool:
        try:
            ip = ipaddress.ip_address(address or "")
        except ValueError:
            return False
        return any(ip in network for network in self._addresses)
