"""Broker groups that a call of RegistrationService is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.core.model import BrokerKey, LiveKey
from namesrv.core.registrations import RouteInfoManager


class NamedGroups:
    """Finds the groups that a request names, and those that it would affect without naming them."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    def of(self, request: Any) -> Iterator[BrokerKey]:
        """The groups, as they are in the request: their names are not checked yet."""
        match request:
            case (
                pb.RegisterBrokerRequest()
                | pb.UnregisterBrokerRequest()
                | pb.QueryDataVersionRequest()
                | pb.BrokerHeartbeatRequest()
            ):
                yield from self._of_broker(request.broker)
            case pb.RegisterTopicRequest():
                for queues in request.queue_datas:
                    yield BrokerKey(queues.cluster_name, queues.broker_name)
            case pb.HandOverChannelRequest():
                for key in self._manager.channels.bound(request.channel_id):
                    yield from self._at(key)

    def _of_broker(self, broker: route_data_pb2.BrokerIdentity) -> Iterator[BrokerKey]:
        """The group that it names, and the one that has its address: taking it removes its broker, or keeps it out."""
        yield BrokerKey(broker.cluster_name, broker.broker_name)
        yield from self._at(LiveKey(broker.cluster_name, broker.broker_addr))

    def _at(self, key: LiveKey) -> Iterator[BrokerKey]:
        live = self._manager.tables.broker_live_table.get(key)
        if live is not None:
            yield live.broker
        elif claim := self._manager.address_claims.at(key):
            yield claim.broker
