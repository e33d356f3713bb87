"""The name servers' endpoints: their order, their back-off, and the addresses behind DNS names."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from namesrv_common.backoff import Backoff
from namesrv_common.endpoints import Endpoint, parse_endpoints, preferred_addresses
from route_client.errors import EndpointListError

# The order in which name servers are asked, and when one is tried again. Pure but for the DNS.

ENVIRONMENT_VARIABLE = "NAMESRV_ADDR"
"""Where the list is taken from if none is given (RocketMQ: MixAll.NAMESRV_ADDR_ENV)."""

DNS_PREFIX = "dns:"
"""``dns:name:port`` stands for all addresses of the name."""

FIRST_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 10.0
BACKOFF_FACTOR = 1.6
JITTER = 0.2
"""A wait is 0.8 to 1.2 times its length, so that clients that lost their name server together come back spread out."""

MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest time that a name server that asks for it is left alone: a slip of it must not lose it for good."""

DOUBT_SECONDS = 30.0
"""How long a name server that let a lookup wait in vain is asked after the others."""


@dataclass(frozen=True, slots=True)
class EndpointList:
    """Name servers as they were given."""

    fixed: tuple[Endpoint, ...]
    """Addresses, and names that gRPC resolves itself."""
    dns_names: tuple[Endpoint, ...] = ()
    """Names that stand for all of their addresses."""

    @property
    def unresolved(self) -> tuple[Endpoint, ...]:
        """All of them, names as they are: gRPC resolves them, to one address at a time."""
        return (*self.fixed, *(name for name in self.dns_names if name not in self.fixed))

    @classmethod
    def parse(cls, texts: str | Iterable[str] | None, environment: Mapping[str, str] = os.environ) -> Self:
        """Parses ``"a:9876;b:9876;dns:namesrv.example:9876"``; None means the environment's NAMESRV_ADDR.

        Raises:
            EndpointListError: There is no list, it is empty, or an element is no address.
        """
        if texts is None:
            texts = environment.get(ENVIRONMENT_VARIABLE)
            if texts is None:
                raise EndpointListError(f"no name server was given and {ENVIRONMENT_VARIABLE} is not set")
        given = [texts] if isinstance(texts, str) else list(texts)
        elements = [element for text in given for element in re.split(r"\s*[;,]\s*|\s+", text.strip())]
        names = [element for element in elements if element.startswith(DNS_PREFIX)]
        fixed = [element for element in elements if not element.startswith(DNS_PREFIX)]
        try:
            parsed = parse_endpoints(fixed) if fixed or not names else ()
            return cls(parsed, parse_endpoints(name.removeprefix(DNS_PREFIX) for name in names) if names else ())
        except ValueError as error:
            raise EndpointListError(str(error)) from error


class EndpointChooser:
    """Stays with one name server while it answers; goes to the next at once, and waits only after a whole round.

    The list is shuffled once (RocketMQ: NettyRemotingClient.updateNameServerAddressList).
    """

    def __init__(self, endpoints: Sequence[Endpoint], rng: random.Random, clock: Callable[[], float]) -> None:
        """Takes at least one endpoint, and a monotonic clock in seconds."""
        self._rng = rng
        self._backoff = Backoff(
            FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, (1 - JITTER, 1 + JITTER), rng=rng, factor=BACKOFF_FACTOR
        )
        self._clock = clock
        self._order = list(endpoints)
        """The current name server first."""
        rng.shuffle(self._order)
        self._failures = 0
        self._not_before: dict[Endpoint, float] = {}
        self._doubted_until: dict[Endpoint, float] = {}

    @property
    def current(self) -> Endpoint:
        """The name server to stay with, or to try next."""
        return self._order[0]

    @property
    def all_failed(self) -> bool:
        """Whether each name server has failed since one last answered."""
        return self._failures >= len(self._order)

    def in_order(self) -> list[Endpoint]:
        """All name servers, the current one first, the doubted ones last."""
        now = self._clock()
        return sorted(self._order, key=lambda endpoint: self._doubted_until.get(endpoint, now) > now)

    def succeeded(self, endpoint: Endpoint) -> None:
        """A name server has answered for a while."""
        self._failures = 0
        self._doubted_until.pop(endpoint, None)

    def doubt(self, endpoint: Endpoint) -> None:
        """A lookup waited too long for this name server."""
        self._doubted_until[endpoint] = self._clock() + DOUBT_SECONDS

    def failed(self, endpoint: Endpoint, retry_after_seconds: float | None = None) -> None:
        """Leaves a name server, which asks to be left alone for a time or not, for the next."""
        now = self._clock()
        self._failures += 1
        if retry_after_seconds is not None:
            self._not_before[endpoint] = now + min(retry_after_seconds, MAX_RETRY_AFTER_SECONDS)
        if endpoint == self.current:  # else the list has changed since the call began
            self._go_to(min([*self._order[1:], endpoint], key=lambda other: self._wait_of(other, now)))

    def choose_anew(self) -> None:
        """Goes to any name server, the current one included, unless that wants to be left alone for a time."""
        now = self._clock()
        free = [endpoint for endpoint in self._order if self._wait_of(endpoint, now) == 0.0]
        self._go_to(self._rng.choice(free or self._order[:1]))

    def delay_seconds(self) -> float:
        """How long to wait before the current name server is tried."""
        backoff = self._backoff.after(self._failures - len(self._order) + 1) if self.all_failed else 0.0
        return max(backoff, self._wait_of(self.current, self._clock()))

    def update(self, endpoints: Sequence[Endpoint]) -> None:
        """Takes another list, of at least one, as after a change in the DNS. Stays with the current one if listed."""
        listed, added = set(endpoints), [endpoint for endpoint in endpoints if endpoint not in self._order]
        self._rng.shuffle(added)
        self._order = [endpoint for endpoint in self._order if endpoint in listed] + added
        self._not_before = {endpoint: at for endpoint, at in self._not_before.items() if endpoint in listed}
        self._doubted_until = {endpoint: at for endpoint, at in self._doubted_until.items() if endpoint in listed}

    def _go_to(self, endpoint: Endpoint) -> None:
        index = self._order.index(endpoint)
        self._order = self._order[index:] + self._order[:index]

    def _wait_of(self, endpoint: Endpoint, now: float) -> float:
        return max(0.0, self._not_before.get(endpoint, now) - now)


# Names of name servers, resolved to all of their addresses in threads of the event loop.

REFRESH_SECONDS = 30.0
"""Between two lookups in the DNS (RocketMQ has 120 s: updateNameServerAddrPeriod)."""

_log = logging.getLogger(__name__)


async def resolve(endpoints: EndpointList, chooser: EndpointChooser, timeout_seconds: float) -> None:
    """Gives a chooser the addresses of all names. A name that cannot be resolved leaves its list as it was.

    Waits no longer than the timeout for each name: the system's own patience may be half a minute.
    """
    resolved = list(endpoints.fixed)
    for name in endpoints.dns_names:
        try:
            async with asyncio.timeout(timeout_seconds):
                found = await asyncio.get_running_loop().getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # a timeout is an OSError, too
            _log.warning("the name servers of %s stay as they were: %r", name, error)
            return
        addresses = preferred_addresses(name.port, found)
        resolved += [address for address in addresses if address not in resolved]
    chooser.update(resolved)


async def keep_resolved(endpoints: EndpointList, chooser: EndpointChooser, timeout_seconds: float) -> None:
    """Resolves from time to time, until cancelled."""
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        await resolve(endpoints, chooser, timeout_seconds)
