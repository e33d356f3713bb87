"""For any input, a call answers or fails with one of its errors. A refusal changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import broker_agent_service_pb2, client_service_pb2, topic_config_service_pb2
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from namesrv_api.v1.route_service_pb2 import GetNamesrvStatusRequest

from namesrv_common.grpc_errors import RichError
from tests.fuzz.mutations import EXAMPLES
from tests.support.fakes.scripted_namesrv import REGISTRATION_SERVICE, SERVICES
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import NEVER_SCAN, Agent
from tests.support.programs.processes import TOPICS, Client, NamesrvProcess

_TEXTS = (
    *("", " ", "*", "TopicTest", "DefaultCluster", "broker-a", "127.0.0.1:10911", "[::1]:1", "host:0", "%RETRY%g"),
    *("TBW102", "ns", "key", "orderMessageEnable", "scanNotActiveBrokerInterval", "logLevel", "listen"),
    *("true", "0", "-1", "NaN", "1" * 5_000, "VG9waWNUZXN0"),
    *("a" * 127, "a" * 128, "b" * 256, "c" * 4_097, "d" * 70_000),
    *("\0", "a\nb", "\u202e", "größer €", "%s%n", "../../etc", "(" * 200, "TAGS IS NOT NULL AND x > 1e999", "{}"),
)
"""What means something to some call, what is at a limit or one past it, and what breaks careless code."""

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1
_LIMITS = {
    FieldDescriptor.CPPTYPE_INT32: (-_MAX_INT32 - 1, _MAX_INT32),
    FieldDescriptor.CPPTYPE_INT64: (-_MAX_INT64 - 1, _MAX_INT64),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2 * _MAX_INT32 + 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2 * _MAX_INT64 + 1),
}
_MOST_ELEMENTS = 3
_DEEPEST = 4
_UNKNOWN_FIELDS = (b"", b"", b"\x82\x7d\x03abc", b"\xf8\x7f\x05", b"\x82\x7d\xff\xff\xff\xff\x0f", b"\xff", b"\x0b")
"""Put behind a message: nothing, fields of a newer version, one that is cut off, and what is no field."""


def methods_of(*services: ServiceDescriptor) -> list[MethodDescriptor]:
    """The calls of services."""
    return [method for service in services for method in service.methods]


def path_of(method: MethodDescriptor) -> str:
    """What a call is named by on the wire."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _scalar(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind in _LIMITS:
        low, high = _LIMITS[kind]
        return draw(st.sampled_from((low, high, 0, 1, 2, 4, 1_000)) | st.integers(low, high))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw(st.booleans())
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        return draw(st.sampled_from((*field.enum_type.values_by_number, -1, 99, _MAX_INT32)))
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return draw(st.floats())
    text = draw(st.sampled_from(_TEXTS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text


def _fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    fields: list[FieldDescriptor] = list(message.DESCRIPTOR.fields)  # type: ignore[arg-type]
    for field in fields:
        if depth == _DEEPEST or not draw(st.integers(0, 2)):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(draw(st.integers(0, _MOST_ELEMENTS))):
                names: Any = field.message_type.fields_by_name
                value[_scalar(draw, names["key"])] = _scalar(draw, names["value"])
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, _MOST_ELEMENTS))):
                if field.message_type is None:
                    value.append(_scalar(draw, field))
                else:
                    _fill(draw, value.add(), depth + 1)
        elif field.message_type is None:
            setattr(message, field.name, _scalar(draw, field))
        else:
            value.SetInParent()
            _fill(draw, value, depth + 1)


@st.composite
def requests(draw: st.DrawFn, methods: list[MethodDescriptor]) -> tuple[MethodDescriptor, bytes]:
    """A call, and the bytes of a request for it: nearly always a message, and one without sense."""
    method = draw(st.sampled_from(methods))
    if not draw(st.integers(0, 19)):
        return method, draw(st.binary(max_size=100))
    message: Message = GetMessageClass(method.input_type)()
    _fill(draw, message, 0)
    return method, message.SerializeToString() + draw(st.sampled_from(_UNKNOWN_FIELDS))


pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore:Generating overly large repr")]

FIRST_MESSAGE_SECONDS = 0.5
"""How long a stream may have nothing to say; then it has taken the request."""
MISPLACED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""Codes of defects: no input leads to them."""

NAMESRV_METHODS = methods_of(*SERVICES, REGISTRATION_SERVICE)
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
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A connection to a name server with everything durable."""
    folder = tmp_path_factory.mktemp("data")
    with NamesrvProcess(*NEVER_SCAN, "--data-dir", str(folder)) as process, process.connect() as client:
        yield client
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
    @settings(max_examples=5 * EXAMPLES, suppress_health_check=list(HealthCheck))
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
def test_no_request_breaks_a_call_of_a_name_server(namesrv: Client) -> None:
    request = GetNamesrvStatusRequest()
    status = namesrv.routes.GetNamesrvStatus
    run(namesrv.connection, NAMESRV_METHODS, lambda: status(request, timeout=TIMEOUT).header.revision)


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
