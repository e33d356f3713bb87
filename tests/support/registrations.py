"""Registrations that tests send, right unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from tests.support.programs.processes import Client


def identity(
    addr: str = "127.0.0.1:10911", broker_id: int | None = 0, name: str = "broker-a", cluster: str = "DefaultCluster"
) -> route_data_pb2.BrokerIdentity:
    """A broker."""
    return route_data_pb2.BrokerIdentity(cluster_name=cluster, broker_name=name, broker_id=broker_id, broker_addr=addr)


def data_version(counter: int = 1) -> route_data_pb2.DataVersion:
    """A version."""
    return route_data_pb2.DataVersion(timestamp_millis=1_000, counter=counter)


def topic_config(name: str = "TopicTest", queues: int = 4, perm: int = 6) -> route_data_pb2.TopicConfig:
    """A topic."""
    return route_data_pb2.TopicConfig(topic=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def registration(
    topics: Iterable[str] = ("TopicTest",),
    broker: route_data_pb2.BrokerIdentity | None = None,
    counter: int = 1,
    channel_id: str | None = None,
) -> pb.RegisterBrokerRequest:
    """A registration."""
    return pb.RegisterBrokerRequest(
        broker=broker or identity(),
        data_version=data_version(counter),
        topic_configs=[topic_config(name) for name in topics],
        channel_id=channel_id,
    )


def register(
    client: Client,
    *topics: str,
    name: str = "broker-a",
    port: int = 10911,
    counter: int = 1,
    channel_id: str | None = None,
) -> pb.RegisterBrokerResponse:
    """Registers the master of a group."""
    request = registration(topics, identity(f"127.0.0.1:{port}", name=name), counter, channel_id)
    return client.registration.RegisterBroker(request, timeout=Client.TIMEOUT)


def make_read_only(client: Client) -> None:
    """Registers the broker of ``registration`` again, with a topic that can only be read."""
    request = registration(counter=2)
    request.topic_configs[0].perm = 4
    client.registration.RegisterBroker(request, timeout=Client.TIMEOUT)


def unregister(client: Client, name: str = "broker-a", port: int = 10911) -> None:
    """Unregisters the master of a group, which is there."""
    request = pb.UnregisterBrokerRequest(broker=identity(f"127.0.0.1:{port}", name=name))
    assert client.registration.UnregisterBroker(request, timeout=Client.TIMEOUT).removed


def unregister_all(client: Client) -> None:
    """Takes out all brokers that there are."""
    for live in [live for message in client.snapshot() for live in message.chunk.live_brokers]:
        broker = identity(live.broker_addr, live.broker_id, live.broker_name, live.cluster_name)
        client.registration.UnregisterBroker(pb.UnregisterBrokerRequest(broker=broker), timeout=Client.TIMEOUT)


def fill(client: Client) -> None:
    """Makes a snapshot of about 10 MB: more than any buffer on the way to a reader holds."""
    for number in range(8):
        broker = identity(f"127.0.0.1:{11_000 + number}", name=f"broker-{number}")
        topics = [f"broker-{number}-topic-{index}" for index in range(20_000)]
        client.registration.RegisterBroker(registration(topics, broker), timeout=60)
