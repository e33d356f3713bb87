"""A number for all that brokers report, taken at each full minute: so metrics tell whether name servers differ."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping

import structlog

from namesrv.core.digests import FRONT, DigestedBroker, RouteDigests
from namesrv.core.errors import Overloaded
from namesrv.server.background.table_writer import run_cooperatively

MINUTE_MILLIS = 60_000
KEPT_MINUTES = 2
"""Scrapes of two name servers may lie on both sides of a full minute: the minute before is in both."""

NUMBER_BYTES = 6
"""Length of a sample: Prometheus' numbers are exact up to 53 bits."""

_log = structlog.get_logger(__name__)


class DigestSamples:
    """The newest samples. Name servers that hold the same of every broker have the same sample of the same minute.

    Each takes them at the same time, that of the wall clock: routes that change between two scrapes are no difference.
    What operators decided is not in them, as in ``GetRouteDigest``.
    """

    def __init__(self, digests: RouteDigests, wall_millis: Callable[[], int]) -> None:
        """Takes what makes digests, and the wall clock."""
        self._digests = digests
        self._wall_millis = wall_millis
        self.by_minute: Mapping[int, int] = {}
        """Samples by the minute of the hour, 0 to 59. Replaced as a whole, for a thread that reads it."""

    def seconds_to_next(self) -> float:
        """How long it is until the next full minute."""
        return (MINUTE_MILLIS - self._wall_millis() % MINUTE_MILLIS) / 1000

    async def take(self) -> None:
        """Takes the sample of the nearest minute, and drops old ones. There is none if routes change too fast."""
        minute = round(self._wall_millis() / MINUTE_MILLIS)
        kept = {(minute - age) % 60 for age in range(1, KEPT_MINUTES)}
        samples = {earlier: value for earlier, value in self.by_minute.items() if earlier in kept}
        try:
            samples[minute % 60] = _number(await run_cooperatively(self._digests.after(FRONT, limit=2**63)))
        except Overloaded as error:
            _log.info("no_digest_sample", reason=str(error))
        self.by_minute = samples

    async def run(self) -> None:
        """Takes one now, which the next replaces, and one at each full minute. Runs until cancelled."""
        while True:
            await self.take()
            await asyncio.sleep(self.seconds_to_next())


def _number(brokers: list[DigestedBroker]) -> int:
    sha256 = hashlib.sha256()
    for broker in brokers:
        cluster_name, broker_name, broker_id = broker.position
        sha256.update(f"{cluster_name} {broker_name} {broker_id} {broker.live.broker_addr}\n".encode())
        sha256.update(broker.digest)
    return int.from_bytes(sha256.digest()[:NUMBER_BYTES])
