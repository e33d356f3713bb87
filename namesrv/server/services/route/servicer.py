"""RouteService: what producers, consumers, tools and the pipeline call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from namesrv.core.pins import Pins
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.services.route.broker_groups import BrokerGroupCalls
from namesrv.server.services.route.cluster_test import ClusterTest
from namesrv.server.services.route.digests import DigestCalls
from namesrv.server.services.route.lookups import LookupCalls
from namesrv.server.services.route.namesrv_status import StatusCalls
from namesrv.server.services.route.snapshots import SnapshotCalls
from namesrv.server.services.route.topic_lists import TopicListCalls
from namesrv.server.services.route.watches import WatchCalls


class RouteServicer(NamedTuple):
    """All calls of the service, by subject."""

    lookups: LookupCalls
    topic_lists: TopicListCalls
    snapshots: SnapshotCalls
    watches: WatchCalls
    digests: DigestCalls
    broker_groups: BrokerGroupCalls
    status: StatusCalls

    @classmethod
    def of(
        cls,
        manager: RouteInfoManager,
        stall_detector: StallDetector,
        warm_up: WarmUp,
        pins: Pins,
        watchers: WatchStreams,
        *,
        shares: FairShares,
        product_env: ClusterTest | None,
        started_at_millis: int,
        engine: str,
        engine_because: str,
        data_dir_problem: Callable[[], str | None],
    ) -> Self:
        """Makes it of what a name server, or a copy of one, consists of, and of what carries its calls and why."""
        return cls(
            LookupCalls(manager, warm_up, product_env),
            TopicListCalls(manager),
            SnapshotCalls(manager, pins, watchers, shares.snapshot_streams),
            WatchCalls(manager, warm_up, watchers),
            DigestCalls(manager),
            BrokerGroupCalls(manager),
            StatusCalls(
                manager,
                stall_detector,
                warm_up,
                started_at_millis=started_at_millis,
                engine=engine,
                engine_because=engine_because,
                data_dir_problem=data_dir_problem,
            ),
        )
