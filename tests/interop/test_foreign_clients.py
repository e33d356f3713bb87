"""Clients written in other languages read what the contract says. A language whose tools are missing is skipped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import route_service_pb2
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

from tests.interop.programs import INSTALL_SECONDS, Programs, as_json
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.programs.processes import Client, NamesrvProcess

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

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
    topic_configs=[TopicConfig(topic="TopicTest", read_queue_nums=4, write_queue_nums=4, perm=6)],
)


class OneAnswer(ScriptedNamesrv):
    """Has numbers that no name server reaches in a test."""

    def GetTopicRoute(self, request: route_service_pb2.GetTopicRouteRequest, _: object) -> Message:  # noqa: N802
        assert request.topic == TOPIC
        return ROUTE


@pytest.fixture(scope="module")
def registered() -> Iterator[NamesrvProcess]:
    """A real name server with one broker, in a process of its own."""
    with NamesrvProcess() as namesrv:
        with namesrv.connect() as client:
            client.registration.RegisterBroker(REGISTRATION, timeout=Client.TIMEOUT)
        yield namesrv
        assert namesrv.terminate() == 0


def test_a_route_arrives_with_exact_numbers_and_zero_told_from_absent(programs: Programs) -> None:
    with OneAnswer() as namesrv:
        done = programs.run("lookup", str(namesrv.endpoint), TOPIC)

    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout) == as_json(ROUTE)


@pytest.mark.parametrize(
    ("topic", "reason"), [("NoSuchTopic", "TOPIC_NOT_FOUND"), ("no\ttopic", "INVALID_FIELD"), ("", "INVALID_FIELD")]
)
def test_a_name_servers_error_is_told_by_its_reason(
    programs: Programs, registered: NamesrvProcess, topic: str, reason: str
) -> None:
    done = programs.run("lookup", str(registered.endpoint), topic)

    assert (done.stdout, done.returncode) == ("", 1)
    assert re.match(rf"\w+ {reason}: ", done.stderr)
