"""Calls to a copy: the current copy answers those that read; only the leader answers the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.rpc_handlers import Behaviour, RefusedCalls, methods_of, part_classes
from groundwork.version import __version__
from namesrv.core.errors import read_only_replica
from namesrv.grpc_api.admin import AdminChanges, AdminQueries
from namesrv.grpc_api.handlers import Context
from namesrv.server.listener import ADMIN_SERVICE

READING_CALLS = methods_of(ADMIN_SERVICE, part_classes(AdminQueries))
"""Calls of AdminService that only read."""

LEADERS_CALLS = methods_of(ADMIN_SERVICE, part_classes(AdminChanges))
"""Calls of AdminService that change something."""


class CallsOfCopy:
    """A part that hands each of its calls to the copy of the moment."""

    def __init__(self, methods: Iterable[MethodDescriptor], behaviours: Callable[[], Mapping[str, Behaviour]]) -> None:
        """Has a method for each call. ``behaviours`` returns what answers them now, or raises Refused."""
        for method in methods:
            setattr(self, method.name, _handed_on(method.name, behaviours))


class StatusOfCopy:
    """The part that tells how a copy is, also while there is none."""

    def __init__(
        self,
        name: str,
        started_at_millis: int,
        behaviours: Callable[[], Mapping[str, Behaviour] | None],
        replica: Callable[[], pb.ReplicaStatus],
    ) -> None:
        """Takes what it tells.

        Args:
            behaviours: What answers the calls of RouteService now, by their names; None if there is no copy.
            replica: Whom it follows, and how far behind it is.
        """
        self._name = name
        self._started_at_millis = started_at_millis
        self._behaviours = behaviours
        self._replica = replica

    async def GetNamesrvStatus(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetNamesrvStatusRequest, context: Context
    ) -> pb.GetNamesrvStatusResponse:
        behaviours = self._behaviours()
        answer: pb.GetNamesrvStatusResponse
        if behaviours is not None:
            answer = await behaviours["GetNamesrvStatus"](request, context)
        else:
            answer = pb.GetNamesrvStatusResponse(
                header=route_data_pb2.NamesrvHeader(namesrv_name=self._name),
                version=__version__,
                started_at_millis=self._started_at_millis,
            )
        answer.replica.CopyFrom(self._replica())
        return answer


def leaders_calls(methods: Iterable[MethodDescriptor], leader: Callable[[], str]) -> RefusedCalls:
    """A part that refuses calls by naming the leader of the moment."""
    return RefusedCalls(methods, lambda _: read_only_replica(leader()))


def _handed_on(name: str, behaviours: Callable[[], Mapping[str, Behaviour]]) -> Behaviour:
    def handed_on(request: Message, context: Context) -> Any:
        return behaviours()[name](request, context)

    return handed_on
