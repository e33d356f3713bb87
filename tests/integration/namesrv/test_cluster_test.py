"""Cluster-test mode: topics that are unknown here are looked up in the product environment, and nothing else is."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import identity, registration

HERE = identity("127.0.0.1:10911", name="broker-here")
THERE = identity("127.0.0.1:20911", name="broker-there")


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port at which nobody listens, and which nobody else is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def plain() -> NamesrvProcess:
    return NamesrvProcess("--warm-up-millis", "0")


def cluster_test(product_env_namesrv: str, port: int = 0) -> NamesrvProcess:
    flags = ("--product-env-namesrv", product_env_namesrv, "--warm-up-millis", "0")
    return NamesrvProcess(*flags, port=port)


def register_here(client: Client) -> None:
    client.registration.RegisterBroker(registration(["both", "here"], HERE), timeout=TIMEOUT)


def register_there(client: Client) -> None:
    client.registration.RegisterBroker(registration(["both", "there"], THERE), timeout=TIMEOUT)


@pytest.fixture(scope="module")
def product() -> Iterator[NamesrvProcess]:
    """The name server of the product environment."""
    with plain() as namesrv, namesrv.connect() as client:
        register_there(client)
        yield namesrv


@pytest.fixture(scope="module")
def client(product: NamesrvProcess) -> Iterator[Client]:
    """A connection to a name server in cluster-test mode. The first of its two product name servers is down."""
    with (
        deaf_port() as port,
        cluster_test(f"127.0.0.1:{port};{product.endpoint}") as namesrv,
        namesrv.connect() as connected,
    ):
        register_here(connected)
        yield connected


def batch(client: Client, topics: Iterable[str]) -> pb.BatchGetTopicRoutesResponse:
    return client.routes.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=topics), timeout=TIMEOUT)


def holder(client: Client, topic: str) -> str | None:
    """Name of the broker group that has the topic; None if the name server says that there is none."""
    route = client.route(topic)
    return route.broker_datas[0].broker_name if route else None


def test_a_topic_that_is_unknown_here_has_the_route_from_there(client: Client, product: NamesrvProcess) -> None:
    with product.connect() as there:
        assert client.route("there") == there.route("there")


def test_every_other_call_knows_only_what_is_here(client: Client) -> None:
    assert list(client.routes.ListTopics(pb.ListTopicsRequest(), timeout=TIMEOUT).topics) == ["both", "here"]
    cluster_info = client.routes.GetBrokerClusterInfo(pb.GetBrokerClusterInfoRequest(), timeout=TIMEOUT)
    assert [group.broker_name for group in cluster_info.broker_datas] == ["broker-here"]


def test_name_servers_that_name_each_other_do_not_ask_in_circles() -> None:
    with plain() as first:
        endpoint = first.endpoint
        first.terminate()
    with (
        cluster_test(str(endpoint)) as here,
        cluster_test(str(here.endpoint), endpoint.port) as there,
        here.connect() as client_here,
        there.connect() as client_there,
    ):
        register_here(client_here)
        register_there(client_there)
        assert holder(client_here, "there") == "broker-there"
        assert holder(client_there, "here") == "broker-here"
        for client in (client_here, client_there):
            assert client.route("nowhere") is None
            assert list(batch(client, ["nowhere"]).topics_not_found) == ["nowhere"]


def test_rocketmqs_clients_get_routes_from_there_too(product: NamesrvProcess) -> None:
    flags = ("--product-env-namesrv", str(product.endpoint), "--remoting-listen", "127.0.0.1:0")
    with NamesrvProcess(*flags) as namesrv, namesrv.connect() as grpc_client:
        register_here(grpc_client)
        with RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as client:
            routes = [client.ask(105, {"topic": topic}).json for topic in ("here", "both", "there")]
            brokers = [route["brokerDatas"][0]["brokerName"] for route in routes]
            assert brokers == ["broker-here", "broker-here", "broker-there"]
            assert client.ask(105, {"topic": "nowhere"}).code == 17
