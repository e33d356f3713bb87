"""Whether a name server has heard its brokers since its start, so that it can say what is not there."""

from __future__ import annotations

from namesrv.core.clock import Clock
from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.core.route_state import Unconfirmed


class WarmUp:
    """The time after a start. It ends once, and looking at it is cheap at any time."""

    def __init__(self, manager: RouteInfoManager, clock: Clock, warm_up_seconds: float) -> None:
        """Begins with the start of the name server; the snapshot file must be loaded before.

        Args:
            manager: Knows which brokers of the snapshot file are still unconfirmed.
            clock: The one that the manager has.
            warm_up_seconds: How long it takes where no snapshot file tells whom to wait for; 0: it is over at once.
        """
        self._manager = manager
        self._clock = clock
        self._started_at = clock.monotonic()
        self._granted_before = manager.granted_seconds
        self._warm_up_seconds = warm_up_seconds
        self._waits_for_brokers = self._has_brokers_of_file()
        self._is_warm = False

    def is_warm(self) -> bool:
        """Whether what is not in the tables does not exist. Once true, true for ever.

        With a snapshot file: every broker of it has registered again or is gone. Without: the warm-up time is over,
        not counting the time in which this process did not run.
        """
        if not self._is_warm:
            if self._waits_for_brokers:
                self._is_warm = not self._has_brokers_of_file()
            else:
                stalled = self._manager.granted_seconds - self._granted_before
                self._is_warm = self._elapsed() - stalled >= self._warm_up_seconds
        return self._is_warm

    def brokers_to_hear(self) -> int:
        """How many brokers of the snapshot file have not registered again and are not gone."""
        return sum(why is Unconfirmed.SNAPSHOT_FILE for why in self._manager.unconfirmed.values())

    @property
    def warm_up_seconds(self) -> float:
        """How long it takes where no snapshot file tells whom to wait for."""
        return self._warm_up_seconds

    def must_wait(self) -> bool:
        """Whether look-ups are refused for now (RocketMQ: needWaitForService, without its bug #9182).

        Each call looks at what is in force now, so an operator can end it, or make it longer.
        """
        behaviour = self._manager.behaviour
        return behaviour.need_wait_for_service and self._elapsed() < behaviour.wait_seconds_for_service

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._started_at

    def _has_brokers_of_file(self) -> bool:
        # They are the first in there, so this does not look at the guard's.
        return any(why is Unconfirmed.SNAPSHOT_FILE for why in self._manager.unconfirmed.values())
