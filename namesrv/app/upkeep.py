"""Background work: expiry scans, expired pins, and digests of the last minute. Digests are made in pages."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial

import structlog
from namesrv_api.v1 import registration_service_pb2

from namesrv.app.channels import ChannelStreams
from namesrv.app.event_log import log_removed
from namesrv.app.fair_queue import OWN
from namesrv.app.stall_detector import StallDetector
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.digests import FRONT, DigestedBroker, Position, RouteDigests
from namesrv.core.errors import Reason, Refused, overloaded
from namesrv.core.pins import Pins
from namesrv.core.removals import scan_not_active_broker
from namesrv.core.state import RouteState

# Scans for brokers and channels that have been silent for too long.

FIRST_SCAN_SECONDS = 5.0
"""When the first scan runs (RocketMQ: NamesrvController.initialize)."""

LOOK_SECONDS = 1.0
"""Longest time until a changed interval counts."""

_IDLE = registration_service_pb2.ChannelClosing.REASON_IDLE


async def scan_for_silent_brokers(
    state: RouteState,
    writer: TableWriter,
    channels: ChannelStreams,
    stall_detector: StallDetector,
    interval_seconds: Callable[[], float],
) -> None:
    """Scans again and again (RocketMQ: the schedule of scanNotActiveBroker). Runs until cancelled.

    Args:
        interval_seconds: Returns the time between two scans, which may change at any time; 0 stops them.
    """
    now = asyncio.get_running_loop().time
    last, longest = now(), FIRST_SCAN_SECONDS
    while True:
        await asyncio.sleep(min(interval_seconds() or LOOK_SECONDS, LOOK_SECONDS))
        interval = interval_seconds()
        if not interval or now() - last < min(interval, longest):
            continue
        stall_detector.check()
        removed = await writer.apply_each(scan_not_active_broker(state))
        log_removed(removed)
        for gone in removed:
            channel_id = gone.live.channel_id
            if channel_id is not None and not state.channels.bound(channel_id):
                channels.close(channel_id, _IDLE)  # so that a living agent behind it opens another and registers
        for channel_id in await writer.read(state.liveness.idle_channels, OWN):
            channels.close(channel_id, _IDLE)
        last, longest = now(), math.inf


# The expiry of pinned snapshots whose readers stopped asking.

PIN_CHECK_SECONDS = 5.0
"""Pause between two looks for pins whose lease has ended."""


async def drop_expired_pins(pins: Pins) -> None:
    """Drops those whose lease has ended. Runs until cancelled."""
    while True:
        await asyncio.sleep(PIN_CHECK_SECONDS)
        pins.drop_expired()


# Pages of digests. A thread computes missing digests until rows and digests are of one moment.

MAX_TRIES = 20
"""Most tries at a page while one of its groups changes all the time. Each takes some 2 ms for 1,000 topics."""


async def digest_page(
    digests: RouteDigests, reader: Worker, after: Position, limit: int, owner: str = OWN
) -> list[DigestedBroker]:
    """The brokers after a position, at most ``limit``, each with the digest of its group.

    Raises:
        OVERLOADED: A group changes faster than its digest can be made.
    """
    for _ in range(MAX_TRIES):
        if missing := digests.missing(after, limit):
            await reader.run(partial(digests.compute, missing), owner)
        page = digests.page(after, limit)
        if page is not None:
            return page
    raise overloaded("a broker group changes all the time, faster than its digest can be made")


# A number for all that brokers report, taken at each full minute: so metrics tell whether name servers differ.

MINUTE_MILLIS = 60_000
KEPT_MINUTES = 2
"""Scrapes of two name servers may lie on both sides of a full minute: the minute before is in both."""

DIGESTED_AT_ONCE = 500
"""Brokers of one moment in a sample: finding these takes the event loop a millisecond."""

NUMBER_BYTES = 6
"""Length of a sample: Prometheus' numbers are exact up to 53 bits."""

_log = structlog.get_logger(__name__)


class DigestSamples:
    """The newest samples. Name servers that hold the same of every broker have the same sample of the same minute.

    They have the same sample only if they hold the same intents, KV configuration and changeable settings, too.
    Each takes them at the same time, that of the wall clock: routes that change between two scrapes are no difference.
    """

    def __init__(
        self,
        state: RouteState,
        reader: Worker,
        wall_millis: Callable[[], int],
        settings: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._state = state
        self._reader = reader
        self._wall_millis = wall_millis
        self._settings = settings
        """Returns the settings that change over the wire."""
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
            samples[minute % 60] = await self._number()
        except Refused as error:
            if error.reason != Reason.OVERLOADED:
                raise
            _log.info("no_digest_sample", reason=str(error))
        self.by_minute = samples

    async def _number(self) -> int:
        """A number for all digests. Raises OVERLOADED if routes change too fast."""
        sha256, position = hashlib.sha256(), FRONT
        sha256.update(await self._reader.run(self._of_operators))
        while brokers := await digest_page(self._state.digests, self._reader, position, DIGESTED_AT_ONCE):
            for broker in brokers:
                cluster_name, broker_name, broker_id = position = broker.position
                sha256.update(f"{cluster_name} {broker_name} {broker_id} {broker.live.broker_addr}\n".encode())
                sha256.update(broker.digest)
        return int.from_bytes(sha256.digest()[:NUMBER_BYTES])

    def _of_operators(self) -> bytes:
        """The changes of operators, in an encoding that is equal at name servers with equal changes."""
        intents = [(one.kind.name, str(one.key), one.ends_at_millis) for one in self._state.intents.intents.values()]
        changed = (sorted(intents, key=str), self._state.kv_config.namespaces, self._settings())
        return json.dumps(changed, sort_keys=True).encode()

    async def run(self) -> None:
        """Takes one now, which the next replaces, and one at each full minute. Runs until cancelled."""
        while True:
            await self.take()
            await asyncio.sleep(self.seconds_to_next())
