"""Network addresses and lists of them, parsed by one rule everywhere."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

MAX_ADDRESS_LENGTH = 260
"""Longest address: a DNS name has at most 253 characters, a colon and a port at most 6 more."""

_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")
"""The interface of a link-local IPv6 address, after its ``%``."""
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")
"""Without leading zeros: otherwise one address has many spellings."""
_SEPARATOR = re.compile(r"\s*[;,]\s*|\s+")

LOOPBACK = "loopback"
"""The owner of all addresses of this machine's own."""
_IPV6_SITE = 64
"""Bits of an IPv6 address that name a site, which has all addresses below it."""


class Endpoint(NamedTuple):
    """A host (name, IPv4 or IPv6 address without brackets) and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, allow_port_zero: bool = False) -> Self:
        """Parses ``host:port`` or ``[ipv6]:port``. As in RocketMQ, the port follows the last colon.

        So the brackets around an IPv6 address may be missing.

        Args:
            allow_port_zero: Whether port 0, "any free port", is allowed, as for a listener.

        Raises:
            ValueError: The text is no such address; the message says which part breaks which rule.
        """
        if len(text) > MAX_ADDRESS_LENGTH:
            raise ValueError(f"address {text[:40]!r}... has {len(text)} characters, at most {MAX_ADDRESS_LENGTH}")
        host, colon, port_text = text.rpartition(":")
        if not colon:
            raise ValueError(f"address {text!r} has no port: write host:port")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        if not _is_host(host, is_ipv6=bracketed or ":" in host):
            raise ValueError(f"address {text!r} has no valid host: write name:port, 1.2.3.4:port or [ipv6]:port")
        port = int(port_text) if _PORT.fullmatch(port_text) else -1
        lowest = 0 if allow_port_zero else 1
        if not lowest <= port <= 65535:
            rule = f"a number from {lowest} to 65535 without leading zeros"
            raise ValueError(f"address {text!r} has port {port_text!r}, not {rule}")
        return cls(host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether the host is a loopback address or ``localhost``."""
        return self.host == "localhost" or owner_of(self.host) == LOOPBACK

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def preferred_addresses(port: int, found: Iterable[tuple[Any, ...]]) -> tuple[Endpoint, ...]:
    """The addresses in the records of ``getaddrinfo``, sorted: those of IPv4, or of IPv6 if there are none.

    A name with both kinds is nearly always one server that can be reached in two ways, and must not count twice.
    """
    hosts = {(family, str(address[0])) for family, _, _, _, address in found}
    preferred = socket.AF_INET if any(family == socket.AF_INET for family, _ in hosts) else socket.AF_INET6
    return tuple(sorted(Endpoint(host, port) for family, host in hosts if family == preferred))


def unreachable_addresses(addresses: Iterable[str]) -> list[str]:
    """Returns those of ``HOST:PORT`` that no other machine can connect to: wildcards, and loopback addresses.

    If all are loopback addresses, the fleet is on one machine, and none is unreachable.
    """
    known = [(address, Endpoint(address.rpartition(":")[0].strip("[]"), 0)) for address in addresses]
    loopback = [address for address, endpoint in known if endpoint.is_loopback]
    wildcard = [address for address, endpoint in known if (ip := _ip_of(endpoint.host)) and ip.is_unspecified]
    return wildcard if len(loopback) == len(known) else [*loopback, *wildcard]


def is_ip_address(host: str) -> bool:
    """Whether a host without brackets is an IPv4 or IPv6 address, and no name."""
    return _ip_of(host) is not None


def is_host_name(host: str) -> bool:
    """Whether a host is a name. A last label of digits would be an IPv4 address, however wrong."""
    return _HOST_NAME.fullmatch(host) is not None and not host.rstrip(".").rpartition(".")[2].isdigit()


def parse_endpoints(texts: str | Iterable[str]) -> tuple[Endpoint, ...]:
    """Parses a list of endpoints, in the form of RocketMQ's ``namesrvAddr`` or in the usual one with commas.

    Semicolons, commas and white space all separate; several texts (a flag given twice) are joined.

    Raises:
        ValueError: An element is empty, has no port, is no address, or is there twice.
    """
    endpoints: list[Endpoint] = []
    for text in [texts] if isinstance(texts, str) else texts:
        for element in _SEPARATOR.split(text.strip()):
            if not element:
                raise ValueError(f"the endpoint list {text!r:.200} has an empty element")
            endpoint = Endpoint.parse(element)
            if endpoint in endpoints:
                raise ValueError(f"the endpoint list {text!r:.200} has {element} twice")
            endpoints.append(endpoint)
    if not endpoints:
        raise ValueError("the endpoint list is empty")
    return tuple(endpoints)


def _is_host(host: str, *, is_ipv6: bool) -> bool:
    if is_ipv6:
        address, percent, zone = host.partition("%")
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            return False
        return not percent or _ZONE.fullmatch(zone) is not None
    return _HOST_NAME.fullmatch(host) is not None


# The owner of an address, which bounds by address count for.


def owner_of(address: str) -> str:
    """Returns the owner of an address: the address, the /64 of an IPv6 address, or loopback."""
    ip = _ip_of(address)
    if ip is None:
        return address
    if ip.is_loopback:
        return LOOPBACK
    return str(ip if ip.version == 4 else ipaddress.ip_network((ip, _IPV6_SITE), strict=False))


def _ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the IP address, IPv4 if it is mapped into IPv6; None for anything else."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip
