"""The lookup of a route, which most requests are, and the groups behind routes."""

from __future__ import annotations

from namesrv.core.errors import RegistryWarming
from namesrv.remoting.answers import no_such_topic
from namesrv.remoting.caller import Caller
from namesrv.remoting.served import Served
from namesrv.remoting.wire import fields
from namesrv.remoting.wire.codes import STANDARD_JSON_VERSION, ResponseCode
from namesrv.remoting.wire.headers import Request, answer
from namesrv.server.services import field_rules
from namesrv.server.services.route.cluster_test import ClusterTest

_ZONE_MODE, _ZONE_NAME = "__ZONE_MODE", "__ZONE_NAME"


class LookupCalls:
    """Answered at once, from whole answers or pieces that are kept."""

    def __init__(self, served: Served, product_env: ClusterTest | None) -> None:
        self._served = served
        self._product_env = product_env

    def route(self, request: Request, _caller: Caller) -> bytes | None:
        """GET_ROUTEINFO_BY_TOPIC, 105; None if the product environment has to be asked."""
        given = request.fields
        topic = given.get("topic", "")
        bare_keys = request.version < STANDARD_JSON_VERSION and fields.bare_keys(request)
        zone_name = _zone_name(request) if _ZONE_NAME in given else None
        served = self._served
        if served.warm_up.must_wait():
            raise RegistryWarming("any route (needWaitForService)")
        body = served.routes.route(topic, zone_name, bare_keys=bare_keys)
        if body is not None:
            return answer(request, ResponseCode.SUCCESS, body)
        if not served.warm_up.is_warm():
            raise RegistryWarming(f"the topic {topic[:127]!r}")
        return None if self._product_env is not None else no_such_topic(request, topic)

    async def route_elsewhere(self, request: Request, _caller: Caller) -> bytes:
        """The same for a topic that is unknown here, in cluster-test mode."""
        assert self._product_env is not None, "it is asked where there is one"
        topic = fields.text(request, "topic")
        field_rules.check_topic("topic", topic)
        encoded = await self._product_env.route(topic, _zone_name(request))
        if encoded is None:
            return no_such_topic(request, topic)
        body = self._served.routes.of_encoded(topic, encoded, bare_keys=fields.bare_keys(request))
        return answer(request, ResponseCode.SUCCESS, body)

    def member_group(self, request: Request, _caller: Caller) -> bytes:
        """GET_BROKER_MEMBER_GROUP, 901."""
        body = self._served.routes.member_group(fields.broker(request), bare_keys=fields.bare_keys(request))
        return answer(request, ResponseCode.SUCCESS, body)


def _zone_name(request: Request) -> str | None:
    """The zone that a client asks from (RocketMQ: ZoneRouteRPCHook)."""
    zone_name = request.fields.get(_ZONE_NAME)
    return zone_name if zone_name and fields.switch(request, _ZONE_MODE) else None
