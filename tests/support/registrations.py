"""Registrations that tests send, right unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    client: Client, *topics: str, name: str = "broker-a", port: int = 10911, **more: Any
) -> pb.RegisterBrokerResponse:
    """Registers the master of a group; ``more`` is for ``registration``."""
    request = registration(topics, identity(f"127.0.0.1:{port}", name=name), **more)
    return client.registration.RegisterBroker(request, timeout=Client.TIMEOUT)


def unregister(client: Client, name: str = "broker-a", port: int = 10911) -> None:
    """Unregisters the master of a group, which is there."""
    request = pb.UnregisterBrokerRequest(broker=identity(f"127.0.0.1:{port}", name=name))
    assert client.registration.UnregisterBroker(request, timeout=Client.TIMEOUT).removed


def unregister_all(client: Client) -> None:
    """Takes out all brokers that there are."""
    for live in [live for message in client.snapshot() for live in message.chunk.live_brokers]:
        broker = identity(live.broker_addr, live.broker_id, live.broker_name, live.cluster_name)
        client.registration.UnregisterBroker(pb.UnregisterBrokerRequest(broker=broker), timeout=Client.TIMEOUT)
