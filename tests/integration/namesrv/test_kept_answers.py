"""What the native engine answers or knows by itself is true, and is counted, permitted and refused as all else."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import invariant
from namesrv_api.v1 import registration_service_pb2
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
from namesrv.limits import MAX_METADATA_BYTES
from namesrv.remoting.caller import Gate, Grade
from namesrv.remoting.calls import AtOnce, Calls, LookupCalls
from namesrv.remoting.connection import Connections
from namesrv.remoting.route_json import RouteJson
from namesrv.server.listeners import build_server
from namesrv.server.server import ROUTE_SERVICE
from namesrv.settings import NamesrvSettings
from namesrv_common.grpc_errors import RichError
from tests.support.core_fleet import CLUSTER, A, B, Fleet, addrs_of
from tests.support.engines import require_native
from tests.support.metrics_page import sample_of
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import identity, registration, unregister
from tests.support.secured.fleet import LIVE_SECONDS, Place, connected, outcome, with_its_broker
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
    "filter servers": lambda fleet: fleet.register(
        A, 0, TOPICS[:3], enable_acting_master=True, filter_servers=("f:1",)
    ),
    "labels": lambda fleet: fleet.register(
        A, 0, TOPICS[:3], enable_acting_master=True, filter_servers=("f:1",), labels=(("rack", "r1"),)
    ),
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


# A name server with metrics: hits and known calls are counted, permitted, traced and refused as all else is.

TIMES = 7
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")
SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-01")
NOT_SAMPLED = ("traceparent", f"00-{'a' * 32}-{'b' * 16}-00")
ASKED = "namesrv_engine_asked_calls_total"
LOOKUP = pb.GetTopicRouteRequest(topic="TopicTest")
HEARTBEAT = registration_service_pb2.BrokerHeartbeatRequest(broker=identity())


@pytest.fixture(scope="module")
def measured() -> Iterator[NamesrvProcess]:
    """A name server with metrics. Each test registers one broker, so that nothing is kept from the one before."""
    with NamesrvProcess(*NO_SCAN, "--metrics-listen", "127.0.0.1:0") as process:
        yield process


@pytest.fixture
def client(measured: NamesrvProcess) -> Iterator[Client]:
    with measured.connect() as connected:
        connected.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        yield connected
        unregister(connected)


def test_hits_are_in_the_metrics_by_method_and_code(measured: NamesrvProcess, client: Client) -> None:
    asked = sample_of(measured, ASKED)
    for _ in range(TIMES):
        assert client.route() is not None
        with pytest.raises(grpc.RpcError):
            client.routes.GetTopicRoute(pb.GetTopicRouteRequest(topic="Missing"), timeout=TIMEOUT)
    method = 'grpc_method="namesrv_api.v1.RouteService/GetTopicRoute"'
    assert sample_of(measured, f"grpc_server_call_started_total{{{method}}}") == 2 * TIMES
    for status in ("OK", "NOT_FOUND"):
        name = f'grpc_server_call_duration_seconds_count{{{method},grpc_status="{status}"}}'
        assert sample_of(measured, name) == TIMES
    assert sample_of(measured, ASKED) - asked == 2, "each lookup once"


def test_a_traced_lookup_is_a_hit_where_nobody_follows_traces(measured: NamesrvProcess, client: Client) -> None:
    for metadata, more in (((NOT_SAMPLED,), 1), ((NOT_SAMPLED,), 0), ((SAMPLED,), 0)):
        before = sample_of(measured, ASKED)
        client.routes.GetTopicRoute(LOOKUP, timeout=TIMEOUT, metadata=metadata)
        assert sample_of(measured, ASKED) - before == more


def test_an_answer_is_kept_for_one_form_of_its_request(measured: NamesrvProcess, client: Client) -> None:
    unknown_field, absent = b"\xfa\x7f\x01x", pb.GetTopicRouteRequest(topic="Absent").SerializeToString()
    look_up = client.connection.unary_unary("/namesrv_api.v1.RouteService/GetTopicRoute", None, None)
    before = sample_of(measured, ASKED)
    for request, asked in ((absent, 1), (absent, 1), (absent + unknown_field, 2), (absent + unknown_field, 3)):
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            look_up(request, timeout=TIMEOUT)
        assert sample_of(measured, ASKED) - before == asked


def beat(caller: Client) -> str:
    return outcome(lambda: caller.registration.BrokerHeartbeat(HEARTBEAT, timeout=TIMEOUT))


def test_heartbeats_are_counted_and_told_the_truth_each_time(measured: NamesrvProcess, client: Client) -> None:
    assert [beat(client) for _ in range(TIMES)] == ["OK"] * TIMES
    unregister(client)
    assert beat(client) == "BROKER_NOT_REGISTERED"
    client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    assert beat(client) == "OK"
    for code, times in (("OK", TIMES + 1), ("NOT_FOUND", 1)):
        labels = f'grpc_method="namesrv_api.v1.RegistrationService/BrokerHeartbeat",grpc_status="{code}"'
        assert sample_of(measured, f"grpc_server_call_duration_seconds_count{{{labels}}}") == times


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_permits_that_are_taken_away_hold_for_what_the_engine_knows(place: Place, kind: str) -> None:
    with (
        with_its_broker(place, kind, *NO_SCAN) as (server, broker),
        connected(server.endpoint, place.files(kind, "client")) as client,
    ):

        def lookup() -> str:
            return outcome(lambda: client.routes.GetTopicRoute(LOOKUP, timeout=TIMEOUT))

        assert {lookup() for _ in range(TIMES)} | {beat(broker) for _ in range(TIMES)} == {"OK"}
        assert beat(client) == "NOT_PERMITTED", "the permit of one caller was used for another"

        def both() -> str:
            return " ".join({lookup(), beat(broker)})

        place.permit(client={"look_up": False}, broker={"register": []})
        eventually(both, lambda reason: reason == "NOT_PERMITTED", LIVE_SECONDS)
        assert both() == "NOT_PERMITTED", "it was refused once, and passed again"
        place.permit()
        eventually(both, lambda reason: reason == "OK", LIVE_SECONDS)


def test_large_metadata_is_refused_before_a_kept_answer_is_given(client: Client) -> None:
    assert client.route() is not None
    filler = ("x-filler", "v" * MAX_METADATA_BYTES)
    with pytest.raises(grpc.RpcError) as caught:
        client.routes.GetTopicRoute(LOOKUP, timeout=TIMEOUT, metadata=(filler,))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


GOOD, MALFORMED = b"\x3a\x00", b"\xff\xff\xff"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def test_calls_of_malformed_messages_are_refused_and_leave_nothing(measured: NamesrvProcess, client: Client) -> None:
    def reflection_of(*requests: bytes) -> RichError:
        call = client.connection.stream_stream(REFLECT, None, None)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter(requests), timeout=TIMEOUT))
        return RichError.of(caught.value)

    health, routes = "/grpc.health.v1.Health", "/namesrv_api.v1.RouteService"
    calls = (f"{health}/Check", f"{health}/Watch", f"{routes}/GetTopicRoute", f"{routes}/WatchTopicRoutes")
    errors = [client.failure(call, MALFORMED) for call in calls]
    errors += [reflection_of(MALFORMED), reflection_of(GOOD, MALFORMED)]
    assert {(error.code, error.reason) for error in errors} == {(grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")}
    eventually(lambda: sample_of(measured, "namesrv_engine_calls_under_way") == 0)
    assert measured.events("handler_failed") == []


def test_an_open_stream_of_reflection_has_a_share_of_its_own_kind(measured: NamesrvProcess, client: Client) -> None:
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reflect: Any = client.connection.stream_stream(REFLECT, None, None)
    answers = reflect(iter(requests.get, None), timeout=TIMEOUT)
    requests.put(GOOD)
    assert next(answers)
    used = 'namesrv_shares_used{kind="reflections"}'
    assert sample_of(measured, used) == 1
    requests.put(None)
    eventually(lambda: sample_of(measured, used) == 0)
