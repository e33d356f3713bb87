"""The name server as a process, on native and on the development engine."""

from __future__ import annotations

import signal
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.server.server import SERVICES
from namesrv_common.grpc_errors import RichError
from tests.support.engines import DEVELOPMENT, NATIVE
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import held_port
from tests.support.programs.processes import BIN, Client, NamesrvProcess, addrs_of, ended, eventually
from tests.support.registrations import identity, registration

REGISTRATION = "/namesrv_api.v1.RegistrationService"
ROUTES = "/namesrv_api.v1.RouteService"


@pytest.fixture(scope="module", params=[NATIVE, DEVELOPMENT])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine."""
    return str(request.param)


def watch_of(client: Client) -> Any:
    return client.routes.WatchTopicRoutes(iter([route_service_pb2.WatchTopicRoutesRequest(topics=["TopicTest"])]))


def test_a_broker_registers_is_found_and_watched_and_unregisters(client: Client) -> None:
    before = client.snapshot()[0].header.revision
    watch = watch_of(client)
    (absent,) = next(watch).changes
    assert (absent.topic, absent.HasField("route")) == ("TopicTest", False)
    answer = client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    assert (answer.changed, answer.header.revision) == (True, before + 1)
    found = client.routes.GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic="TopicTest"), timeout=TIMEOUT)
    assert found.header == answer.header
    assert addrs_of(found.route.broker_datas[0]) == {0: "127.0.0.1:10911"}
    assert [(queue.broker_name, queue.write_queue_nums) for queue in found.route.queue_datas] == [("broker-a", 4)]
    (present,) = next(watch).changes
    assert present.route == found.route
    watch.cancel()
    gone, again = (
        client.registration.UnregisterBroker(pb.UnregisterBrokerRequest(broker=identity()), timeout=TIMEOUT)
        for _ in range(2)
    )
    assert gone.removed
    assert again.HasField("removed")
    assert not again.removed
    assert client.route() is None


def test_the_members_of_a_group_are_told_and_a_slave_learns_its_master(client: Client) -> None:
    master = registration()
    master.ha_server_addr, master.zone_name, master.enable_acting_master = "127.0.0.1:10912", "zone-1", True
    client.registration.RegisterBroker(master, timeout=TIMEOUT)
    slave = registration(broker=identity("127.0.0.1:20911", 1))
    answer = client.registration.RegisterBroker(slave, timeout=TIMEOUT)
    assert (answer.master_addr, answer.ha_server_addr) == ("127.0.0.1:10911", "127.0.0.1:10912")

    def group(name: str) -> route_data_pb2.BrokerData:
        asked = route_service_pb2.GetBrokerMemberGroupRequest(cluster_name="DefaultCluster", broker_name=name)
        return client.routes.GetBrokerMemberGroup(asked, timeout=TIMEOUT).broker_data

    known, unknown = group("broker-a"), group("broker-b")
    assert addrs_of(known) == {0: "127.0.0.1:10911", 1: "127.0.0.1:20911"}
    assert (known.zone_name, known.enable_acting_master) == ("zone-1", True)
    assert unknown == route_data_pb2.BrokerData(cluster_name="DefaultCluster", broker_name="broker-b")
    assert client.failure(f"{ROUTES}/GetBrokerMemberGroup", b"").metadata == {"field": "cluster_name"}
    info = client.routes.GetBrokerClusterInfo(route_service_pb2.GetBrokerClusterInfoRequest(), timeout=TIMEOUT)
    assert list(info.broker_datas) == [known]


def test_a_topic_is_registered_for_a_group_and_again_without_a_change(client: Client) -> None:
    registered = client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    queues = route_data_pb2.QueueData(
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        read_queue_nums=4,
        write_queue_nums=8,
        perm=6,
        topic_sys_flag=0,
    )
    request = pb.RegisterTopicRequest(topic="New", queue_datas=[queues])
    first, again = (client.registration.RegisterTopic(request, timeout=TIMEOUT) for _ in range(2))
    assert (first.changed, first.header.revision) == (True, registered.header.revision + 1)
    assert again.HasField("changed")
    assert (again.changed, again.header.revision) == (False, first.header.revision)
    route = client.route("New")
    assert route is not None
    assert list(route.queue_datas) == [queues]


def test_an_error_about_very_many_fields_reaches_its_caller(client: Client) -> None:
    queues = [route_data_pb2.QueueData(broker_name=f"broker-{number}" * 20, perm=-1) for number in range(99)]
    error = client.failure(f"{REGISTRATION}/RegisterTopic", pb.RegisterTopicRequest(topic="New", queue_datas=queues))
    assert (error.reason, error.violations[0].field) == ("INVALID_FIELD", "queue_datas[0].cluster_name")


def test_the_end_of_a_channel_removes_its_broker_before_any_expiry_could(client: Client) -> None:
    channel = client.open_channel()
    client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=TIMEOUT)
    assert client.addrs() == {0: "127.0.0.1:10911"}
    channel.close()
    eventually(client.route, lambda route: route is None)
    error = client.failure(f"{REGISTRATION}/RegisterBroker", registration(channel_id=channel.id))
    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_GONE")


@pytest.mark.own_server
def test_a_shutdown_tells_health_channels_watches_and_removes_nothing(namesrv: NamesrvProcess, client: Client) -> None:
    channel = client.open_channel()
    client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=TIMEOUT)
    health = health_pb2_grpc.HealthStub(client.connection)
    for name in ("", *(service.full_name for service in SERVICES)):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    routes: Any = client.routes.WatchTopicRoutes(
        iter([route_service_pb2.WatchTopicRoutesRequest(topics=["TopicTest"])])
    )
    assert next(routes).changes
    namesrv.signal(signal.SIGTERM)
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    closing = channel.next_event().closing
    assert (closing.reason, closing.retry_delay_millis) == (pb.ChannelClosing.REASON_SHUTDOWN, 1_000)
    with pytest.raises(grpc.RpcError) as ended_watch:
        list(routes)
    assert RichError.of(ended_watch.value).reason == "SHUTTING_DOWN"
    assert namesrv.wait() == 0
    assert namesrv.events("broker_removed") == []
    assert namesrv.events("namesrv_stopped")


def test_a_port_in_use_is_one_line_and_exit_code_2(namesrv: NamesrvProcess, engine: str) -> None:
    second = ended([str(BIN / "namesrv"), "serve", "--listen", str(namesrv.endpoint), "--engine", engine])
    assert second.returncode == 2
    assert second.stderr == f"namesrv: setting listen: cannot listen on {namesrv.endpoint}: Address already in use\n"


def test_only_the_development_engine_says_that_it_is_one(namesrv: NamesrvProcess, engine: str) -> None:
    assert len(namesrv.events("development_engine")) == (engine == DEVELOPMENT)
    assert namesrv.wait_for("namesrv_started")["engine"] == engine


def test_the_health_check_command_tells_serving_from_not(namesrv: NamesrvProcess) -> None:
    def check(*flags: str) -> tuple[int, str]:
        done = ended([str(BIN / "namesrv"), "healthcheck", "--timeout", str(TIMEOUT), "--namesrv", *flags])
        return done.returncode, done.stderr

    here = str(namesrv.endpoint)
    with held_port() as nobody:
        codes = [check(str(endpoint))[0] for endpoint in (here, nobody, "nonsense")]
    assert codes == [0, 1, 2]
    assert check(here, "--service", "nope") == (1, f"{here}: there is no service nope\n")


NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]


def ask(client: Client, version: str, *requests: ServerReflectionRequest) -> list[ServerReflectionResponse]:
    """Asks over one stream of a version of reflection. The messages of both are the same bytes."""
    call = client.connection.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        ServerReflectionRequest.SerializeToString,
        ServerReflectionResponse.FromString,
    )
    return list(call(iter(requests), timeout=TIMEOUT))


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_services_calls_and_files_are_found_by_their_names(client: Client, version: str) -> None:
    (listed,) = ask(client, version, ServerReflectionRequest(list_services=""))
    assert {service.name for service in listed.list_services_response.service} == {
        *(service.full_name for service in SERVICES),
        "grpc.health.v1.Health",
    }
    file_of = {
        name: of.file.name for of in SERVICES for name in (of.full_name, *(method.full_name for method in of.methods))
    }
    answers = ask(client, version, *(ServerReflectionRequest(file_containing_symbol=symbol) for symbol in file_of))
    for (symbol, file), answer in zip(file_of.items(), answers, strict=True):
        files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
        assert file in {one.name for one in files}, symbol
        assert answer.original_request.file_containing_symbol == symbol
    names = ["namesrv_api/v1/route_service.proto", "nothing.proto"]
    answers = ask(client, version, *(ServerReflectionRequest(file_by_filename=name) for name in names))
    assert [answer.error_response.error_code for answer in answers] == [0, NOT_FOUND]
    (missing,) = ask(client, version, ServerReflectionRequest(file_containing_symbol="nothing"))
    assert missing.error_response.error_code == NOT_FOUND


def test_a_registration_of_10000_topics_arrives_compressed(client: Client) -> None:
    """Scenario 68."""
    sent = [f"topic-{number:05}" for number in range(10_000)]
    client.registration.RegisterBroker(registration(sent), timeout=TIMEOUT, compression=grpc.Compression.Gzip)
    messages = client.snapshot()
    assert len(messages) > 4, "header, chunks of a few hundred kB at most, end"
    assert max(message.ByteSize() for message in messages) < 300_000
    rows = [row for message in messages for row in message.chunk.topics]
    assert sorted(row.topic for row in rows) == sent
    queues = [queue for row in rows for queue in row.queue_datas]
    assert {(queue.read_queue_nums, queue.write_queue_nums, queue.perm) for queue in queues} == {(4, 4, 6)}


def test_a_call_that_there_is_not_is_answered_so(client: Client) -> None:
    """Scenario 48. RocketMQ 4 leaves the caller waiting."""
    for path in ("/namesrv_api.v1.RouteService/NoSuchCall", "/no.such.Service/NoSuchCall"):
        assert client.failure(path, b"").code is grpc.StatusCode.UNIMPLEMENTED
