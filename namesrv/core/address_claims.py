"""The addresses that brokers had when they left: each is their group's for a time, against other owners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from namesrv.core.model import BrokerKey, BrokerLiveInfo, LiveKey
from namesrv.core.policy import Clock

MAX_CLAIMS = 50_000
"""Most claims, as many as brokers may be live; beyond, the oldest goes."""

MAX_CLAIMS_OF_GROUP = 16
"""Most claims of one group, more than any has brokers: nobody fills the table, or keeps a network's addresses from
others, by registering one after the other. Beyond, the oldest goes."""


class AddressClaim(NamedTuple):
    """The claim of a broker that is down to the address that it had."""

    key: LiveKey
    broker: BrokerKey
    broker_id: int
    since_millis: int
    """When it left, milliseconds since the Unix epoch."""
    ends_at_millis: int


class AddressClaims:
    """Claims by address. A claim ends when its address or its broker is registered again, or with its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._claims: dict[LiveKey, AddressClaim] = {}
        """Oldest first."""
        self._of_group: dict[BrokerKey, dict[int, LiveKey]] = {}
        """By broker id, oldest first: a broker has one claim."""
        self.version = 0
        """Counts changes."""

    def __len__(self) -> int:
        return len(self._claims)

    def load(self, claims: Iterable[AddressClaim], seconds: float) -> None:
        """Takes claims of a former process, none of them for longer than a new one would last.

        Args:
            claims: Oldest first.
            seconds: How long a new claim would last; 0: there are none.
        """
        latest = self._clock.wall_millis() + round(seconds * 1000)
        for claim in claims:
            if seconds:
                self._put(claim._replace(ends_at_millis=min(claim.ends_at_millis, latest)))

    def left(self, live: BrokerLiveInfo, seconds: float) -> None:
        """A broker has left, for whatever reason: its address is its group's for so long; 0: for no time."""
        if seconds:
            now = self._clock.wall_millis()
            self._put(AddressClaim(live.key, live.broker, live.broker_id, now, now + round(seconds * 1000)))

    def registered(self, live: BrokerLiveInfo) -> None:
        """A broker is there: nobody claims its address, and it claims no other one."""
        self.release(live.key)
        elsewhere = self._of_group.get(live.broker, {}).get(live.broker_id)
        if elsewhere is not None:
            self.release(elsewhere)

    def release(self, key: LiveKey) -> AddressClaim | None:
        """Ends the claim to an address, and returns it; None if there is none."""
        claim = self._claims.pop(key, None)
        if claim is None:
            return None
        self.version += 1
        addresses = self._of_group[claim.broker]
        del addresses[claim.broker_id]
        if not addresses:
            del self._of_group[claim.broker]
        return claim

    def at(self, key: LiveKey) -> AddressClaim | None:
        """The claim to an address that is in force."""
        claim = self._claims.get(key)
        if claim is not None and claim.ends_at_millis <= self._clock.wall_millis():
            self.release(key)
            return None
        return claim

    def in_force(self) -> list[AddressClaim]:
        """All claims, oldest first: 50,000 take five milliseconds."""
        now = self._clock.wall_millis()
        return [claim for claim in self._claims.values() if claim.ends_at_millis > now]

    def _put(self, claim: AddressClaim) -> None:
        self.release(claim.key)
        addresses = self._of_group.get(claim.broker, {})
        if claim.broker_id in addresses:
            self.release(addresses[claim.broker_id])
        elif len(addresses) >= MAX_CLAIMS_OF_GROUP:
            self.release(next(iter(addresses.values())))
        if len(self._claims) >= MAX_CLAIMS:
            self.release(next(iter(self._claims)))
        self._claims[claim.key] = claim
        self._of_group.setdefault(claim.broker, {})[claim.broker_id] = claim.key
        self.version += 1
