"""A DNS with the answers of the test."""

from __future__ import annotations

import threading

from namesrv_common.endpoints import Endpoint
from tests.support.patience import TIMEOUT


class NameSystem:
    def __init__(self, **addresses: str) -> None:
        self.addresses = {host: hosts.split() for host, hosts in addresses.items()}
        self.asked: list[str] = []
        self.hanging: set[str] = set()
        self.without_addresses: set[str] = set()
        self._answer = threading.Event()

    def set(self, host: str, addresses: str) -> None:
        """The addresses behind a host, separated by blanks; none at all is a failure."""
        self.addresses[host] = addresses.split()

    def answer_all(self) -> None:
        self._answer.set()

    def resolve(self, name: Endpoint) -> tuple[Endpoint, ...]:
        self.asked.append(name.host)
        if name.host in self.hanging:
            assert self._answer.wait(TIMEOUT)
        if name.host in self.without_addresses:
            return ()
        if not self.addresses.get(name.host):
            raise OSError(f"{name.host} is not known")
        return tuple(Endpoint(host, name.port) for host in sorted(self.addresses[name.host]))


def endpoints(text: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint.parse(part) for part in text.split())
