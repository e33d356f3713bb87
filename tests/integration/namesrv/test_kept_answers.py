"""Whatever happens to the tables: what the native engine answers by itself is what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import invariant
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.route_data_pb2 import TopicRouteData
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from namesrv.app.worker import Worker
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.model import ORDER_TOPIC_CONFIG, Behaviour, BrokerKey
from namesrv.core.removals import TopicDeletion
from namesrv.core.state import WarmUp
from namesrv.core.watch.hub import ORDER_MESSAGE_ENABLE
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.remoting.caller import Gate, Grade
from namesrv.remoting.calls import AtOnce, Calls, LookupCalls
from namesrv.remoting.connection import Connections
from namesrv.remoting.route_json import RouteJson
from namesrv.server.listeners import build_server
from namesrv.server.server import ROUTE_SERVICE
from namesrv.settings import NamesrvSettings
from tests.support.core_fleet import CLUSTER, A, B, Fleet, addrs_of
from tests.support.engines import require_native
from tests.support.patience import TIMEOUT
from tests.support.programs.rocketmq import RemotingClient
from tests.support.state_changes import apply_now
from tests.unit.namesrv.reference_inputs import TOPICS_KNOWN
from tests.unit.namesrv.servicers import route_servicer
from tests.unit.namesrv.watch_machine import WatchesAgainstLookups

TOPICS = list(TOPICS_KNOWN)
ZONES = (None, "z1")


def lookup(stub: RouteServiceStub, topic: str, zone: str | None) -> pb.GetTopicRouteResponse | None:
    try:
        return stub.GetTopicRoute(pb.GetTopicRouteRequest(topic=topic, zone_name=zone), timeout=TIMEOUT)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return None


class Served:
    """A server on the native engine that answers from a fleet's tables, and connections that look topics up."""

    def __init__(self, fleet: Fleet) -> None:
        require_native()
        self.state = state = fleet.state
        self.loop = asyncio.new_event_loop()
        configured = NamesrvSettings.load(None, {"listen": "127.0.0.1:0"})
        self.server: Any = build_server(configured)
        self.server.keep_answers_of(state, follows_traces=False)
        handlers = handlers_of_server(20.0).of(ROUTE_SERVICE, route_servicer(fleet))
        self.server.add_handlers(ROUTE_SERVICE.full_name, handlers)
        port = self.server.listen("127.0.0.1:0", [])
        self.json = RouteJson(state)
        lookups = LookupCalls(state, Worker("reader"), WarmUp(state, 0))
        at_once = {105: AtOnce(Grade.LOOKUPS, lookups.route), 901: AtOnce(Grade.LOOKUPS, lookups.member_group)}
        calls = Calls(Gate(Grade, None), at_once, {})
        connections = Connections(calls, lambda *_: None)
        remoting = self.server.listen("127.0.0.1:0", [], connections)
        self.loop.run_until_complete(self.server.start())
        self.readers = [grpc.insecure_channel(f"127.0.0.1:{port}") for _ in range(2)]
        self.clients = [RemotingClient(f"127.0.0.1:{remoting}") for _ in range(2)]

    def check(self) -> None:
        """Every connection is answered what the tables hold."""
        self.loop.run_until_complete(self.loop.run_in_executor(None, self._compare))

    def _compare(self) -> None:
        state = self.state
        held = {(topic, zone): state.route(topic, zone) for topic in [*TOPICS, "T5"] for zone in ZONES}
        for stub in map(RouteServiceStub, self.readers):  # the first may fill what the other one gets
            for (topic, zone), route in held.items():
                answer = lookup(stub, topic, zone)
                assert (answer is None) == (route is None)
                if answer is not None:
                    assert answer.header == state.header()
                    assert answer.route == TopicRouteData.FromString(route or b"")
            batch = stub.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=TOPICS), timeout=TIMEOUT)
            assert batch.header == state.header()
            known = {topic: route for topic in TOPICS if (route := held[topic, None]) is not None}
            assert {named.topic: named.route for named in batch.routes} == {
                topic: TopicRouteData.FromString(route) for topic, route in known.items()
            }
            clusters = stub.GetBrokerClusterInfo(pb.GetBrokerClusterInfoRequest(), timeout=TIMEOUT)
            assert clusters.header == state.header()
            assert {(one.cluster_name, one.broker_name): addrs_of(one) for one in clusters.broker_datas} == {
                tuple(key): group.addrs for key, group in state.tables.broker_addr_table.items()
            }

        for client in self.clients:
            self._compare_frames(client, held)

    def _compare_frames(self, client: RemotingClient, topics: Iterable[tuple[str, str | None]]) -> None:
        for topic, zone in topics:
            asked = {"topic": topic} | ({} if zone is None else {"__ZONE_MODE": "true", "__ZONE_NAME": zone})
            answer = client.ask(105, asked)
            assert (answer.body or None) == self.json.route(topic, zone)
            assert answer.code == (0 if answer.body else 17)
        for name in ("broker-a", "broker-b"):
            told = client.ask(901, {"clusterName": CLUSTER, "brokerName": name}).body
            assert told == self.json.member_group(BrokerKey(CLUSTER, name))

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        for client in self.clients:
            client.close()
        hits, frame_hits = self.server.hits(), self.server.frame_hits()
        self.loop.run_until_complete(self.server.stop(0.0))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        assert sum(count for count, _ in hits.values()), "nothing was answered by the engine itself"
        assert {105, 901} <= frame_hits.keys()


class KeptAnswersAgainstTables(WatchesAgainstLookups):
    served: Served | None = None

    @invariant()
    def every_connection_is_answered_what_the_tables_hold(self) -> None:
        if self.served is None:  # after the fleet's own beginning, which has no order with another one's
            self.served = Served(self.fleet)
        self.served.check()

    def teardown(self) -> None:
        if self.served is not None:
            self.served.close()
        super().teardown()


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestKeptAnswers(KeptAnswersAgainstTables.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=25, stateful_step_count=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
    )


CAUSE = Cause("test")


def order(fleet: Fleet, value: str) -> None:
    table = fleet.state.kv_config.with_value(ORDER_TOPIC_CONFIG, "T1", value)
    fleet.state.publish_kv_config(table, CAUSE)


def fall_silent(fleet: Fleet) -> None:
    fleet.clock.advance(1_000.0)
    fleet.scan()


def enable_order(fleet: Fleet, *, enabled: bool) -> None:
    behaviour = replace(fleet.state.behaviour, order_message_enable=enabled)
    rows = (SettingChange(ORDER_MESSAGE_ENABLE, None, str(enabled)),)
    fleet.state.publish_behaviour(behaviour, CAUSE, rows)


GROUP = BrokerKey(CLUSTER, "broker-a")
CHANGES: dict[str, Callable[[Fleet], object]] = {
    "the order configuration": lambda fleet: order(fleet, "broker-a:8"),
    "its setting": lambda fleet: enable_order(fleet, enabled=False),
    "a slave": lambda fleet: fleet.register(B, 1, (), enable_acting_master=True),
    "a slave that stands in": lambda fleet: fleet.unregister(A),
    "another zone": lambda fleet: fleet.register(B, 1, (), zone_name="z1"),
    "a topic that is absent": lambda fleet: fleet.register_topic("T5", {GROUP: (1, 1, 6, 0)}),
    "a deletion": lambda fleet: apply_now(TopicDeletion(fleet.state, "T2", None, CAUSE)),
    "another group": lambda fleet: fleet.register("127.0.0.1:7", 0, TOPICS, name="broker-b"),
    "a group that goes": lambda fleet: fleet.unregister("127.0.0.1:7", name="broker-b"),
    "the silence of all": fall_silent,
}


def test_a_kept_answer_goes_with_each_kind_of_change() -> None:
    fleet = Fleet(Behaviour(support_acting_master=True, order_message_enable=True))
    fleet.register(A, 0, TOPICS[:3], enable_acting_master=True)
    order(fleet, "broker-a:4")
    served = Served(fleet)
    try:
        for change in CHANGES.values():
            served.check()
            revision = fleet.state.revision
            change(fleet)
            assert fleet.state.revision > revision
        served.check()
    finally:
        served.close()
