"""The call of AdminService that says why a topic's route is as it is."""

from __future__ import annotations

from collections.abc import Iterable

from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.config import limits
from namesrv.core.errors import InvalidField, LimitExceeded
from namesrv.core.explain import Explanation, Question, explain_route
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.server.background.table_writer import run_cooperatively
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules

SLICE = 200
"""Explanations that are made messages before giving way: about a millisecond."""


class ExplainCalls:
    """Requests are checked here; the core has the answers."""

    def __init__(self, manager: RouteInfoManager, started_at_millis: int) -> None:
        self._manager = manager
        self._started_at_millis = started_at_millis

    async def ExplainTopicRoute(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.ExplainTopicRouteRequest, _context: Context
    ) -> pb.ExplainTopicRouteResponse:
        """Why groups are or are not in a topic's route; RocketMQ has nothing like it."""
        question = _question(request)
        header = self._manager.header()  # of the revision that the explanation begins with
        explanations = await run_cooperatively(explain_route(self._manager, self._started_at_millis, question))
        if len(explanations) > limits.MAX_EXPLANATIONS:
            what = "groups to explain in one answer (broker_name asks for one)"
            raise LimitExceeded(what, len(explanations), limits.MAX_EXPLANATIONS)
        return pb.ExplainTopicRouteResponse(
            header=header, explanations=await run_cooperatively(_messages(explanations))
        )


def _question(request: pb.ExplainTopicRouteRequest) -> Question:
    """Checks a request. Raises InvalidField."""
    field_rules.check_topic("topic", request.topic)
    for field in ("broker_name", "cluster_name", "zone_name"):
        if request.HasField(field):
            field_rules.check_name(field, getattr(request, field))
    if request.HasField("cluster_name") and not request.HasField("broker_name"):
        raise InvalidField("broker_name", "is missing; cluster_name says which of several groups of one name is meant")
    return Question(
        request.topic,
        request.broker_name if request.HasField("broker_name") else None,
        request.cluster_name if request.HasField("cluster_name") else None,
        request.zone_name if request.HasField("zone_name") else None,
    )


def _messages(explanations: Iterable[Explanation]) -> Sliced[list[pb.RouteExplanation]]:
    messages = []
    for count, explanation in enumerate(explanations, 1):
        reason = explanation.removal_reason
        messages.append(
            pb.RouteExplanation(
                cluster_name=explanation.broker.cluster_name,
                broker_name=explanation.broker.broker_name,
                in_route=explanation.in_route,
                explanation=explanation.text,
                since_millis=explanation.since_millis,
                removal_reason=None if reason is None else route_data_pb2.RemovalReason.Name(reason.value),
            )
        )
        if count % SLICE == 0:
            yield
    return messages
