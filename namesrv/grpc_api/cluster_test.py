"""Cluster-test mode: lookups ask another environment for unknown topics (RocketMQ: ClusterTestRequestProcessor)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.core.errors import Reason, Refused, overloaded, topic_not_found
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.grpc_api import streams
from namesrv.grpc_api.handlers import Context
from namesrv.grpc_api.route import LookupCalls
from namesrv_common.client.channels import open_aio_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from namesrv_common.topic_names import MAX_TOPIC_LENGTH

CLUSTER_TEST_KEY = "namesrv-cluster-test"
"""Metadata of a lookup for another name server. It is answered from these tables alone, or two would ask in circles."""
PRODUCT_ENV = "center"
"""The product environment in errors: the default of RocketMQ's productEnvName."""
_PATH = f"/{pb.DESCRIPTOR.services_by_name['RouteService'].full_name}/BatchGetTopicRoutes"
_OPTIONS = (("grpc.max_receive_message_length", limits.MAX_PRODUCT_ENV_ANSWER_BYTES), ("grpc.enable_retries", 0))
_Answer = pb.BatchGetTopicRoutesResponse
_Routes = dict[str, route_data_pb2.TopicRouteData | None]


class ClusterTestLookups(LookupCalls):
    """Answers from the tables first. Name servers of the other environment are asked one by one, without TLS.

    One that fails is asked last from then on, because each that hangs costs its share of the time.
    """

    inline_calls = ()
    keeps_unknown = False

    def __init__(self, state: RouteState, warm_up: WarmUp, endpoints: Sequence[Endpoint]) -> None:
        super().__init__(state, warm_up)
        self._namesrvs = list(endpoints)
        self._channels = {namesrv: open_aio_channel(namesrv, _OPTIONS, None) for namesrv in endpoints}
        self._places = asyncio.Semaphore(limits.MAX_PRODUCT_ENV_LOOKUPS)

    async def GetTopicRoute(self, request: pb.GetTopicRouteRequest, context: Context) -> bytes:
        try:
            return await super().GetTopicRoute(request, context)
        except Refused as error:
            if error.reason != Reason.TOPIC_NOT_FOUND or _is_for_another(context):
                raise
        header, route = self.state.header(), await self.route_elsewhere(request.topic, streams.zone_name(request))
        if route is None:
            raise topic_not_found(request.topic)
        return pb.GetTopicRouteResponse(header=header, route=route).SerializeToString()

    async def BatchGetTopicRoutes(self, request: pb.BatchGetTopicRoutesRequest, context: Context) -> bytes:
        answer = _Answer.FromString(await super().BatchGetTopicRoutes(request, context))
        unknown, routes = list(answer.topics_not_found), _Routes()
        if unknown and not _is_for_another(context):
            try:
                routes = await self._routes_elsewhere(unknown, streams.zone_name(request))
            except Refused as error:
                if error.reason != Reason.PRODUCT_ENV_UNAVAILABLE:  # with this one, unknown topics count as warming
                    raise
            del answer.topics_not_found[:]
            answer.topics_not_found.extend(topic for topic, route in routes.items() if route is None)
            answer.topics_warming.extend(topic for topic in unknown if topic not in routes)
            free = limits.MAX_BATCH_BYTES - answer.ByteSize()
            for topic, route in routes.items():
                if route is not None and (free := free - route.ByteSize() - MAX_TOPIC_LENGTH) < 0:
                    answer.topics_left_out.append(topic)
                elif route is not None:
                    answer.routes.add(topic=topic, route=route)
            order = {topic: number for number, topic in enumerate(request.topics)}
            answer.routes.sort(key=lambda named: order[named.topic])
        return answer.SerializeToString()

    async def route_elsewhere(self, topic: str, zone_name: str | None) -> route_data_pb2.TopicRouteData | None:
        """The route in the other environment; None if it has none. Raises PRODUCT_ENV_UNAVAILABLE and OVERLOADED."""
        return (await self._routes_elsewhere([topic], zone_name))[topic]

    async def _routes_elsewhere(self, topics: Sequence[str], zone_name: str | None) -> _Routes:
        if self._places.locked():
            raise overloaded("as many lookups as may wait for the product environment wait already")
        routes, problems, time = _Routes(), list[str](), asyncio.get_running_loop().time
        deadline = time() + limits.PRODUCT_ENV_TIMEOUT_SECONDS
        async with self._places:
            for asked, namesrv in enumerate(tuple(self._namesrvs)):
                missing = [topic for topic in topics if topic not in routes]
                request = pb.BatchGetTopicRoutesRequest(topics=missing, zone_name=zone_name)
                call = self._channels[namesrv].unary_unary(_PATH, type(request).SerializeToString, _Answer.FromString)
                seconds = max(0.0, (deadline - time()) / (len(self._namesrvs) - asked))
                try:
                    answer: _Answer = await call(request, timeout=seconds, metadata=((CLUSTER_TEST_KEY, "1"),))
                except grpc.aio.AioRpcError as error:
                    rich = RichError.of(error)
                    problems.append(f"{namesrv}: {rich.code.name} {rich.reason}".rstrip())
                    self._namesrvs.sort(key=namesrv.__eq__)  # it is the last now
                    continue
                known = dict.fromkeys(answer.topics_not_found) | {named.topic: named.route for named in answer.routes}
                routes |= {topic: known[topic] for topic in missing if topic in known}
                if len(routes) == len(topics):
                    break
                problems.append(f"{namesrv}: is not warm")
        if not routes:
            text = f"unknown here, and the product environment {PRODUCT_ENV!r} cannot tell: {'; '.join(problems)}"
            raise Refused(Reason.PRODUCT_ENV_UNAVAILABLE, text, product_env=PRODUCT_ENV)
        return routes

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close(None)


def _is_for_another(context: Context) -> bool:
    return any(key == CLUSTER_TEST_KEY for key, _ in context.invocation_metadata() or ())
