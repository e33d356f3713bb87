"""The warm-up after a start: until it is over, a name server cannot say that a topic does not exist."""

from __future__ import annotations

from namesrv.core.model import Clock, Doubt
from namesrv.core.state import RouteState

COMING_BACK_SECONDS = 10.0
"""How long a start waits for brokers that registered after its snapshot file was written: agents come back within 5 s
(reopenLongest), and as much again for their registration."""

ROCKETMQ_COMING_BACK_SECONDS = 35.0
"""The same where RocketMQ's own brokers register: they look for name servers every 3 s and register every 30 s."""


class WarmUp:
    """The time after a start. It ends once, and looking at it is cheap at any time."""

    def __init__(
        self, state: RouteState, clock: Clock, warm_up_seconds: float, *, snapshot_is_complete: bool = False
    ) -> None:
        """Begins with the start of the name server; the snapshot file must be loaded before.

        Args:
            warm_up_seconds: How long it takes without a snapshot file; 0 for not at all. With a file it takes that long
                or ``COMING_BACK_SECONDS``, whichever is shorter, and until all brokers of the file are seen. A file
                with RocketMQ's own brokers has ``ROCKETMQ_COMING_BACK_SECONDS`` instead. Brokers that are connected by
                then and have not registered yet are waited for that long again, at most.
            snapshot_is_complete: Whether the file holds all brokers, as after an orderly end. Then only
                the wait for them counts.
        """
        self._state = state
        self._clock = clock
        self._started_at = clock.monotonic()
        self._granted_before = state.granted_seconds
        self.warm_up_seconds = warm_up_seconds
        self._waits_for_brokers = self._has_brokers_of_file()
        self._shortest_seconds = warm_up_seconds
        if self._waits_for_brokers:
            # A broker may have registered after the file was written, and is no less alive for it.
            is_rocketmqs = any(live.topic_by_topic for _, live in state.tables.broker_live_table.rows())
            coming_back_seconds = ROCKETMQ_COMING_BACK_SECONDS if is_rocketmqs else COMING_BACK_SECONDS
            self._shortest_seconds = 0.0 if snapshot_is_complete else min(warm_up_seconds, coming_back_seconds)
        self._is_warm = False

    def is_warm(self) -> bool:
        """Whether the tables have all topics that exist. Once true, true forever.

        With a snapshot file: every broker of it has registered again or was removed, and brokers that registered after
        the file was written have had time to return. A complete file has all brokers. Without a file: the warm-up time
        is over. Time in which this process did not run does not count. When a large fleet returns, its registrations
        are queued, so a broker that is connected is waited for.
        """
        if not self._is_warm:
            granted = self._state.granted_seconds - self._granted_before
            running = self._clock.monotonic() - self._started_at - granted
            over_since = running - self._shortest_seconds
            some_register = self._state.liveness.unused_channels > 0 and over_since < self.warm_up_seconds
            self._is_warm = (
                over_since >= 0 and not some_register and not (self._waits_for_brokers and self._has_brokers_of_file())
            )
        return self._is_warm

    def serves(self) -> bool:
        """Whether the routes of a snapshot file were loaded, or the name server is warm. Once true, true forever.

        If so, clients may send lookups, and the snapshot file may be replaced. Unknown topics may exist nevertheless.
        """
        return self._waits_for_brokers or self.is_warm()

    def brokers_to_hear(self) -> int:
        """The number of brokers of the snapshot file that have neither registered again nor been removed."""
        return sum(why is Doubt.SNAPSHOT_FILE for why in tuple(self._state.doubts.values()))

    def _has_brokers_of_file(self) -> bool:
        # They are the first in there, so this does not look at the others.
        return any(why is Doubt.SNAPSHOT_FILE for why in tuple(self._state.doubts.values()))
