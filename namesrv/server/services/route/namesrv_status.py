"""The call of RouteService that tells how the name server is."""

from __future__ import annotations

from collections.abc import Callable

from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.version import __version__
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.server.background.stall_detector import StallDetector
from namesrv.server.rpc.handlers import Context
from namesrv.server.task_count import TaskCount


class StatusCalls:
    """Counts what is there."""

    def __init__(
        self,
        manager: RouteInfoManager,
        stall_detector: StallDetector,
        warm_up: WarmUp,
        *,
        started_at_millis: int,
        engine: str,
        engine_because: str,
        data_dir_problem: Callable[[], str | None],
    ) -> None:
        self._manager = manager
        self._stall_detector = stall_detector
        self._warm_up = warm_up
        self._started_at_millis = started_at_millis
        self._engine = engine
        self._engine_because = engine_because
        self._data_dir_problem = data_dir_problem
        self._tasks = TaskCount()

    async def GetNamesrvStatus(  # noqa: N802 - calls have the names of the wire contract
        self, _request: pb.GetNamesrvStatusRequest, _context: Context
    ) -> pb.GetNamesrvStatusResponse:
        """How this name server is."""
        tables = self._manager.tables
        guarded, guard_ends_at = self._manager.guarded()
        return pb.GetNamesrvStatusResponse(
            header=self._manager.header(),
            version=__version__,
            started_at_millis=self._started_at_millis,
            warm=self._warm_up.is_warm(),
            guard_tripped=guarded > 0,
            unconfirmed_broker_count=len(self._manager.unconfirmed),
            live_broker_count=len(tables.broker_live_table),
            topic_count=len(tables.topic_queue_table),
            loop_lag_millis=self._stall_detector.longest_delay() * 1000,
            compacted_revision=self._manager.change_log.compacted_revision,
            task_count=self._tasks.latest(),
            engine=self._engine,
            engine_because=self._engine_because,
            data_dir_problem=self._data_dir_problem(),
            guarded_broker_count=guarded,
            guard_ends_at_millis=guard_ends_at,
        )
