"""One copy of a leader's tables, with everything that answers from it. A copy lasts as long as its leader's epoch."""

from __future__ import annotations

import asyncio
import secrets

from groundwork.grpc_handlers.composition import Composition
from namesrv.core.errors import CallRefused, EpochChanged, RevisionCompacted
from namesrv.core.pins import Pins
from namesrv.core.policy import Clock
from namesrv.core.replica import ReplicaManager
from namesrv.core.warm_up import WarmUp
from namesrv.core.watch import Follower
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background.clearing_up import clear_up
from namesrv.server.background.pin_expiry import drop_expired_pins
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.engines.chosen_engine import ChosenEngine
from namesrv.server.listener import ROUTE_SERVICE
from namesrv.server.replica.calls import READING_CALLS
from namesrv.server.services.admin.servicer import AdminQueries
from namesrv.server.services.route.cluster_test import ClusterTest
from namesrv.server.services.route.servicer import RouteServicer
from namesrv.server.stores.config_store import ConfigStore


class LeadersWarmUp(WarmUp):
    """A copy is as warm as its leader."""

    def __init__(self, manager: ReplicaManager, clock: Clock) -> None:
        super().__init__(manager, clock, 0.0)
        self._copy = manager

    def is_warm(self) -> bool:
        """Whether what is not in the tables does not exist."""
        return self._copy.warm

    def must_wait(self) -> bool:
        """Never set: a copy that is served has all that its leader has."""
        return False


class Copy:
    """Tables, watches, pins and what answers calls. Must be made inside the event loop, once the tables are whole."""

    def __init__(
        self,
        manager: ReplicaManager,
        clock: Clock,
        stall_detector: StallDetector,
        config: ConfigStore,
        *,
        shares: FairShares,
        product_env: ClusterTest | None,
        started_at_millis: int,
        engine: ChosenEngine,
    ) -> None:
        self.manager = manager
        self.warm_up = LeadersWarmUp(manager, clock)
        self.watchers = WatchStreams(manager, self.warm_up, clock, shares=shares, is_copy=True)
        self._pins = Pins(clock.monotonic, lambda: secrets.token_urlsafe(18), shares.of_pins)
        route = RouteServicer.of(
            manager,
            stall_detector,
            self.warm_up,
            self._pins,
            self.watchers,
            shares=shares,
            product_env=product_env,
            started_at_millis=started_at_millis,
            engine=engine.name,
            engine_because=engine.why,
            data_dir_problem=lambda: None,  # a copy keeps nothing on disk
        )
        self.queries = AdminQueries.of(manager, config, self.watchers, started_at_millis=started_at_millis)
        self.route = Composition.of(ROUTE_SERVICE.methods, route).behaviours
        """What answers the calls of RouteService, by their names."""
        self.admin = Composition.of(READING_CALLS, self.queries).behaviours
        """What answers those of AdminService that only read."""

    async def run(self) -> None:
        """Runs the background work of the copy while it is served. Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watchers.tell_changes())
            tasks.create_task(self.watchers.give_bookmarks())
            tasks.create_task(drop_expired_pins(self._pins))
            tasks.create_task(clear_up(self.manager.leftovers))

    async def retire(self, successor: ReplicaManager) -> None:
        """Tells all readers of changes to start again, at the copy that is served now."""
        self._pins.close()
        log, identity = self.manager.change_log, self.manager.identity

        def failure_of(reader: Follower) -> CallRefused:
            if successor.identity.epoch != identity.epoch:
                return EpochChanged(identity.epoch, successor.identity.epoch)
            return RevisionCompacted(
                max(0, reader.revision), successor.change_log.compacted_revision, log.last.revision
            )

        await self.watchers.retire(failure_of)
