"""Clients written in other languages, with those languages' own tools, read what the contract says.

The clients are built from protos/ in a temporary folder. A language whose tools are not on this machine is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from namesrv_api.v1 import registration_service_pb2_grpc, route_service_pb2, route_service_pb2_grpc
from namesrv_api.v1.registration_service_pb2 import RegisterBrokerRequest
from namesrv_api.v1.route_data_pb2 import (
    BrokerAddr,
    BrokerData,
    BrokerIdentity,
    DataVersion,
    NamesrvHeader,
    QueueData,
    TopicConfig,
    TopicRouteData,
)

REPOSITORY = Path(__file__).resolve().parents[2]
INTEROP = Path(__file__).resolve().parent

INSTALL_SECONDS = 240
"""Downloading and compiling from scratch takes 3 s for Node and 30 s for Go on two cores and a fast network."""
LOOKUP_SECONDS = 20
OLDEST_GO = (1, 25)
OLDEST_NODE = (18,)

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

Lookup = Callable[[str, str], subprocess.CompletedProcess[str]]
"""Runs a client with an endpoint and a topic."""

ROUTE = route_service_pb2.GetTopicRouteResponse(
    header=NamesrvHeader(namesrv_name="namesrv-a", epoch="0001792384000000-5f2c", revision=2**53 + 1),
    route=TopicRouteData(
        queue_datas=[
            # Permission 0 is set and the flag is not: a client that mixes up zero and absent shows it here.
            QueueData(broker_name="broker-a", cluster_name="c1", read_queue_nums=4, write_queue_nums=0, perm=0),
            QueueData(broker_name="broker-b", cluster_name="c1", read_queue_nums=8, write_queue_nums=8, perm=6),
        ],
        broker_datas=[
            BrokerData(
                cluster_name="c1",
                broker_name="broker-a",
                broker_addrs=[BrokerAddr(broker_addr="10.0.0.1:10911"), BrokerAddr(broker_id=1, broker_addr="[::1]:1")],
            ),
            BrokerData(
                cluster_name="c1",
                broker_name="broker-b",
                broker_addrs=[BrokerAddr(broker_id=2**53 + 1, broker_addr="b.example:10911")],
            ),
        ],
    ),
)
TOPIC = "Topic-漢字"

REGISTRATION = RegisterBrokerRequest(
    broker=BrokerIdentity(cluster_name="c1", broker_name="broker-a", broker_id=0, broker_addr="10.0.0.1:10911"),
    data_version=DataVersion(timestamp_millis=1_700_000_000_000, counter=1),
    topic_configs=[TopicConfig(topic_name="TopicTest", read_queue_nums=4, write_queue_nums=4, perm=6)],
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server with one answer, which has the numbers that no name server reaches in a test."""

    def get_topic_route(
        request: route_service_pb2.GetTopicRouteRequest, _context: grpc.ServicerContext
    ) -> route_service_pb2.GetTopicRouteResponse:
        assert request.topic == TOPIC
        return ROUTE

    handler = grpc.unary_unary_rpc_method_handler(
        get_topic_route,
        request_deserializer=route_service_pb2.GetTopicRouteRequest.FromString,
        response_serializer=route_service_pb2.GetTopicRouteResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    service = grpc.method_handlers_generic_handler("namesrv_api.v1.RouteService", {"GetTopicRoute": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    """A real name server, in a process of its own, on which one broker has registered."""
    program = str(Path(sys.executable).with_name("namesrv"))
    command = [program, "serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--warm-up-millis", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            started = json.loads(process.stderr.readline())
            with grpc.insecure_channel(started["listen"]) as connection:
                stub = registration_service_pb2_grpc.RegistrationServiceStub(connection)
                stub.RegisterBroker(REGISTRATION, timeout=LOOKUP_SECONDS)
            yield started["listen"]
        finally:
            process.terminate()
            _, last_lines = process.communicate(timeout=LOOKUP_SECONDS)
    assert process.returncode == 0, last_lines


@pytest.fixture(scope="module", params=["node", "go"])
def lookup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lookup:
    """Each of the clients, freshly built."""
    folder = tmp_path_factory.mktemp(request.param)
    return {"node": build_node_client, "go": build_go_client}[request.param](folder)


def test_the_route_arrives_with_every_number_exact_and_zero_told_from_absent(lookup: Lookup, endpoint: str) -> None:
    done = lookup(endpoint, TOPIC)

    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout) == as_json(ROUTE)


def test_a_name_server_gives_the_route_that_a_python_client_gets(lookup: Lookup, namesrv: str) -> None:
    done = lookup(namesrv, "TopicTest")

    assert (done.stderr, done.returncode) == ("", 0)
    with grpc.insecure_channel(namesrv) as connection:
        request = route_service_pb2.GetTopicRouteRequest(topic="TopicTest")
        answer = route_service_pb2_grpc.RouteServiceStub(connection).GetTopicRoute(request, timeout=LOOKUP_SECONDS)
    assert [(b.broker_id, b.broker_addr) for b in answer.route.broker_datas[0].broker_addrs] == [(0, "10.0.0.1:10911")]
    assert json.loads(done.stdout) == as_json(answer)


@pytest.mark.parametrize(
    ("topic", "reason"), [("NoSuchTopic", "TOPIC_NOT_FOUND"), ("no such topic", "INVALID_FIELD"), ("", "INVALID_FIELD")]
)
def test_a_name_servers_error_is_told_by_its_reason(lookup: Lookup, namesrv: str, topic: str, reason: str) -> None:
    done = lookup(namesrv, topic)

    assert (done.stdout, done.returncode) == ("", 1)
    assert re.match(rf"\w+ {reason}: ", done.stderr)


def test_a_name_server_that_is_not_there_is_unavailable_within_the_deadline(lookup: Lookup) -> None:
    with socket.socket() as taken:  # bound and not listening: a connection is refused, and nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        done = lookup(f"127.0.0.1:{taken.getsockname()[1]}", TOPIC)

    assert (done.stdout, done.returncode) == ("", 1)
    assert re.match(r"(?i)unavailable: ", done.stderr)


def build_node_client(folder: Path) -> Lookup:
    """Installs the packages that the lock file pins."""
    node, npm = require("node"), require("npm")
    require_version("node", [node, "--version"], OLDEST_NODE)
    client = copy_client("node", folder)
    # No package of ours needs its install script to run, so none may.
    run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], client, os.environ)
    return lambda endpoint, topic: look_up([node, "lookup.mjs"], client, endpoint, topic)


def build_go_client(folder: Path) -> Lookup:
    """Builds the code generators that go.mod pins, generates the code, compiles the client."""
    go, buf = require("go"), require("buf")
    require_version("go", [go, "env", "GOVERSION"], OLDEST_GO)
    client, tools = copy_client("go", folder), folder / "bin"
    environment = os.environ | {"GOBIN": str(tools), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    run([go, "install", "tool"], client, environment)
    run([buf, "generate", str(REPOSITORY / "protos")], client, environment)
    run([go, "build", "-o", str(tools / "lookup"), "."], client, environment)
    return lambda endpoint, topic: look_up([str(tools / "lookup")], client, endpoint, topic)


def look_up(command: Sequence[str], client: Path, endpoint: str, topic: str) -> subprocess.CompletedProcess[str]:
    """Runs a client. A proxy that the machine has for the outside world is not for the loopback interface."""
    environment = os.environ | {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [*command, endpoint, topic],
        cwd=client,
        env=environment,
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=LOOKUP_SECONDS,
    )


def copy_client(language: str, folder: Path) -> Path:
    """Copies a client, and protos/ to where the client has it in the repository, so that this tree stays clean."""
    client = folder / "tests" / "interop" / language
    shutil.copytree(INTEROP / language, client, ignore=shutil.ignore_patterns("node_modules"))
    shutil.copytree(REPOSITORY / "protos", folder / "protos")
    return client


def require(tool: str) -> str:
    """Finds a tool beside the interpreter or on the path; skips the test, naming it, where there is none."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return shutil.which(tool, path=path) or pytest.skip(f"{tool} is not installed")


def require_version(tool: str, command: Sequence[str], oldest: tuple[int, ...]) -> None:
    """Skips the test, naming the tool, where its version is too old."""
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    version = tuple(int(number) for number in re.findall(r"\d+", text))
    if version < oldest:
        pytest.skip(f"{tool} {text} is older than {'.'.join(map(str, oldest))}")


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Runs a build step; what it printed is the failure's message."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        encoding="utf-8",
        timeout=INSTALL_SECONDS,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"


def as_json(answer: route_service_pb2.GetTopicRouteResponse) -> object:
    """Protobuf's own JSON form, 64-bit numbers as text and absent fields left out: what both clients print."""
    return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
