"""Whatever is sent to a call: it answers, or an error of ours says why; a refusal changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2, client_service_pb2, topic_config_service_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, note, settings
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2, route_service_pb2
from namesrv_internal.v1 import diagnostics_service_pb2

from groundwork.grpc_errors import RichError
from tests.fuzz.messages import methods_of, path_of, requests
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import NEVER_SCAN, Agent
from tests.support.programs.processes import TOPICS, NamesrvProcess

pytestmark = pytest.mark.fuzz

EXAMPLES = 5 * int(os.environ.get("FUZZ_EXAMPLES", "60"))
FIRST_MESSAGE_SECONDS = 0.5
"""How long a stream may have nothing to say; then it has taken the request."""
MISPLACED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""Codes of defects: no input leads to them."""

NAMESRV_METHODS = methods_of(
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    registration_service_pb2.DESCRIPTOR.services_by_name["RegistrationService"],
    route_service_pb2.DESCRIPTOR.services_by_name["RouteService"],
    diagnostics_service_pb2.DESCRIPTOR.services_by_name["DiagnosticsService"],
)
CLIENT_METHODS = methods_of(client_service_pb2.DESCRIPTOR.services_by_name["ClientService"])
OPERATOR_METHODS = methods_of(
    broker_agent_service_pb2.DESCRIPTOR.services_by_name["BrokerAgentService"],
    topic_config_service_pb2.DESCRIPTOR.services_by_name["TopicConfigService"],
)


def send(connection: grpc.Channel, method: MethodDescriptor, request: bytes) -> RichError | None:
    """Makes a call; returns its error, or None after an answer that is of the contract."""
    answer_class = GetMessageClass(method.output_type)
    if not method.server_streaming:
        unary = connection.unary_unary(path_of(method), lambda data: data, answer_class.FromString)
        try:
            unary(request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            return RichError.of(error)
        return None
    call: Any = connection.unary_stream(path_of(method), lambda data: data, answer_class.FromString)
    stream = call(request, timeout=FIRST_MESSAGE_SECONDS)
    try:
        next(stream, None)
    except grpc.RpcError as error:
        rich = RichError.of(error)
        return None if rich.code == grpc.StatusCode.DEADLINE_EXCEEDED else rich
    finally:
        stream.cancel()
    return None


def check(error: RichError | None) -> None:
    """An error is one of ours, and says what is wrong."""
    if error is not None:
        assert error.code not in MISPLACED, error
        assert error.reason, error
        assert error.message, error


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A connection to a name server with everything durable."""
    folder = tmp_path_factory.mktemp("data")
    with (
        NamesrvProcess(*NEVER_SCAN, "--data-dir", str(folder)) as process,
        process.connect() as client,
    ):
        yield client.connection
        assert not process.events("internal_defect")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent whose topics calls may change. Its name server does not answer."""
    topics = tmp_path_factory.mktemp("agent") / "topics.json"
    shutil.copy(TOPICS, topics)
    with Agent("127.0.0.1:9", "--topics-mode", "own", topics=topics) as process:
        yield process
        assert process._popen.poll() is None


def run(connection: grpc.Channel, methods: list[MethodDescriptor], state: Any) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=requests(methods))
    def send_it(case: tuple[MethodDescriptor, bytes]) -> None:
        method, request = case
        note(f"{method.full_name}: {request!r}")
        before = state()
        error = send(connection, method, request)
        check(error)
        if error is not None:
            assert state() == before, f"it was refused with {error}, and has changed something"

    send_it()


@pytest.mark.timeout(7_200)
def test_no_request_breaks_a_call_of_a_name_server(namesrv: grpc.Channel) -> None:
    get_status = route_service_pb2.GetNamesrvStatusRequest()
    status = namesrv.unary_unary(
        "/namesrv_api.v1.RouteService/GetNamesrvStatus",
        route_service_pb2.GetNamesrvStatusRequest.SerializeToString,
        route_service_pb2.GetNamesrvStatusResponse.FromString,
    )
    run(namesrv, NAMESRV_METHODS, lambda: status(get_status, timeout=TIMEOUT).header.revision)


@pytest.mark.parametrize(
    ("listener", "methods"),
    [("listening_on", CLIENT_METHODS), ("fast_listening_on", OPERATOR_METHODS)],
    ids=["clients", "operators"],
)
@pytest.mark.timeout(7_200)
def test_no_request_breaks_a_call_of_an_agent(agent: Agent, listener: str, methods: list[MethodDescriptor]) -> None:
    address = agent.wait_for("agent_started")[listener]
    with grpc.insecure_channel(address) as connection, agent.connect() as operator:
        run(connection, methods, lambda: operator.table().data_version.counter)


@pytest.mark.parametrize("method", NAMESRV_METHODS, ids=lambda method: method.name)
def test_an_empty_request_is_answered_or_refused(namesrv: grpc.Channel, method: MethodDescriptor) -> None:
    check(send(namesrv, method, b""))
