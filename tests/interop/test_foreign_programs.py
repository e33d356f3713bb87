"""Programs that know protos/ or HTTP/2 alone: clients in two languages, a broker in Go without an agent, and h2spec.

A language whose tools are missing is skipped.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.route_data_pb2 import BrokerAddr, BrokerData, NamesrvHeader, QueueData, TopicRouteData

from tests.interop.conftest import Built
from tests.interop.programs import GO_ENVIRONMENT, INSTALL_SECONDS, Programs, require, run
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.programs.processes import Client, NamesrvProcess, ended
from tests.support.secured.fleet import Place

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

TOPIC = "Topic-漢字"
ROUTE = pb.GetTopicRouteResponse(
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

ADDR = "127.0.0.1:10911"
BROKER = ("go-broker", ADDR, "T1", "T2")

H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
CALL = "/grpc.health.v1.Health/Check"


# Clients


class OneAnswer(ScriptedNamesrv):
    """Has numbers that no name server reaches in a test."""

    def GetTopicRoute(self, request: pb.GetTopicRouteRequest, _: object) -> Message:  # noqa: N802
        assert request.topic == TOPIC
        return ROUTE


@pytest.fixture(params=["node", "go"])
def programs(request: pytest.FixtureRequest, built: Built) -> Programs:
    """The clients of each language in turn."""
    return built(request.param)


def test_a_route_arrives_with_exact_numbers_and_zero_told_from_absent(programs: Programs) -> None:
    with OneAnswer() as namesrv:
        done = programs.run("lookup", str(namesrv.endpoint), TOPIC)
    assert (done.stderr, done.returncode) == ("", 0)
    # Protobuf's own JSON form, 64-bit numbers as text and absent fields left out, is what all clients print.
    shown = MessageToDict(ROUTE, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    assert json.loads(done.stdout) == shown


def test_a_name_servers_error_is_told_by_its_reason(programs: Programs, namesrv: NamesrvProcess) -> None:
    done = programs.run("lookup", str(namesrv.endpoint), "NoSuchTopic")
    assert (done.stdout, done.returncode) == ("", 1)
    assert re.match(r"\w+ TOPIC_NOT_FOUND: ", done.stderr)


# A broker


def test_a_broker_without_an_agent_registers_and_unregisters_when_ended(
    built: Built, namesrv: NamesrvProcess, client: Client
) -> None:
    with built("go").start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert broker.next_line()["event"]["opened"]["channel_id"]
        registered = broker.next_line()["registered"]
        assert registered["changed"] is True
        queried = broker.next_line()["data_version_queried"]
        assert queried["changed"] is False
        assert queried["data_version"]["counter"] == "1"
        assert (client.addrs("T1"), client.addrs("T2")) == ({0: ADDR}, {0: ADDR})
        asked = pb.WatchTopicRoutesRequest(topics=["T1", "T2"])
        watch: Any = client.routes.WatchTopicRoutes(iter([asked]), timeout=Client.TIMEOUT)
        assert {change.topic for change in next(watch).changes if change.HasField("route")} == {"T1", "T2"}
        broker.terminate()
        assert broker.next_line()["unregistered"]["removed"] is True
        assert broker.end() == (0, "")
    removal = pb.BrokerRemoval(
        cluster_name="DefaultCluster",
        broker_name="go-broker",
        broker_id=0,
        broker_addr=ADDR,
        reason="REMOVAL_REASON_UNREGISTERED",
    )
    assert {change.topic: list(change.removals) for change in next(watch).changes} == {"T1": [removal], "T2": [removal]}
    watch.cancel()
    assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_broker_without_an_agent_ends_with_the_reason_when_it_is_refused(
    built: Built, namesrv: NamesrvProcess
) -> None:
    with built("go").start("broker", str(namesrv.endpoint), "go\tbroker", *BROKER[1:]) as broker:
        assert "opened" in broker.next_line()["event"]
        code, error = broker.end()
    assert (code, error.split(":")[0]) == (1, "InvalidArgument INVALID_FIELD")


# h2spec


@pytest.fixture(scope="module")
def h2spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    folder = tmp_path_factory.mktemp("h2spec")
    run([require("go"), "install", H2SPEC], folder, GO_ENVIRONMENT | {"GOBIN": str(folder)})
    return folder / "h2spec"


@pytest.mark.parametrize("tls", [False, True])
def test_native_breaks_no_rule_of_http_2(h2spec: Path, tls: bool, tmp_path: Path) -> None:
    flags = Place.make(tmp_path).flags("TLS", with_permits=False) if tls else ()
    with NamesrvProcess(*flags) as namesrv:
        host, port = namesrv.endpoint
        command = [str(h2spec), "-h", host, "-p", str(port), "-P", CALL, "-o", "10", *(["-t", "-k"] if tls else [])]
        done = ended(command)
    passed = re.search(r"(\d+) tests, (\d+) passed, 0 skipped, 0 failed", done.stdout)
    assert passed, done.stdout[done.stdout.find("Failures:") :]
    assert passed[1] == passed[2]
