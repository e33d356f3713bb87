"""The tables of benchmarks: the topics of each broker, as the bytes that it would send."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from namesrv_api.v1 import registration_service_pb2, route_data_pb2

SEED = 9191
CLUSTERS = 4
QUEUE_NUMS = 8
PERM_READ_WRITE = 6
TIMESTAMP_MILLIS = 1_700_000_000_000
"""Of all data versions."""
HEARTBEAT_TIMEOUT_MILLIS = 3_600_000
"""Nobody renews during a measurement, and nobody may expire either."""


class Broker(NamedTuple):
    """A master. Nothing listens at its address."""

    number: int

    @property
    def name(self) -> str:
        """Name of its group."""
        return f"broker-{self.number:05}"

    @property
    def cluster(self) -> str:
        """Name of its cluster."""
        return f"cluster-{self.number % CLUSTERS}"

    @property
    def addr(self) -> str:
        """Its address."""
        number = self.number
        return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:10911"

    @property
    def identity(self) -> route_data_pb2.BrokerIdentity:
        """All of these."""
        return route_data_pb2.BrokerIdentity(
            cluster_name=self.cluster, broker_name=self.name, broker_id=0, broker_addr=self.addr
        )


class Profile(NamedTuple):
    """How large a table is."""

    topics: int
    brokers: int
    width: int
    """Brokers that each topic has queues on."""

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"{self.topics:,} topics x {self.brokers:,} brokers x width {self.width}"

    def registrations(self, counter: int = 1, *, changed: bool = False) -> Iterator[bytes]:
        """The encoded registration of each broker. Made one at a time, so that they take no memory themselves.

        Args:
            counter: Counter of the data versions.
            changed: Whether all topics have other queue counts than usual.
        """
        for broker, topics in enumerate(self.topics_of_brokers()):
            yield registration(broker, topics, counter, changed=changed)

    def topics_of_brokers(self) -> list[array[int]]:
        """Numbers of the topics of each broker; the same ones at each call."""
        rng = random.Random(SEED)
        topics_of = [array("l") for _ in range(self.brokers)]
        for topic in range(self.topics):
            for broker in rng.sample(range(self.brokers), self.width):
                topics_of[broker].append(topic)
        return topics_of

    def topic_names(self, count: int) -> list[str]:
        """Names of topics in random order; the same ones at each call."""
        rng = random.Random(SEED)
        return [topic_name(rng.randrange(self.topics)) for _ in range(count)]


def topic_name(number: int) -> str:
    """Name of a topic."""
    return f"topic-{number:06}"


def registration(broker: int, topics: Sequence[int], counter: int = 1, *, changed: bool = False) -> bytes:
    """A master's full registration.

    Args:
        broker: Number of the broker.
        topics: Numbers of its topics.
        counter: Counter of its data version.
        changed: Whether all topics have other queue counts than usual.
    """
    queue_nums = QUEUE_NUMS * 2 if changed else QUEUE_NUMS
    request = registration_service_pb2.RegisterBrokerRequest(
        broker=Broker(broker).identity,
        data_version=route_data_pb2.DataVersion(timestamp_millis=TIMESTAMP_MILLIS, counter=counter),
        heartbeat_timeout_millis=HEARTBEAT_TIMEOUT_MILLIS,
    )
    for topic in topics:
        request.topic_configs.add(
            topic=topic_name(topic), read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=PERM_READ_WRITE
        )
    return request.SerializeToString()
