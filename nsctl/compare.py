"""The comparison of name servers: what each holds, as a set, and the members that are not in all of them.

Digests of what brokers report come first, with the intents of operators. Routes are read only where a digest differs:
a fleet may have 100,000 topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from nsctl.health import INTENT_WORDS
from nsctl.output import PERMISSIONS


class BrokerKey(NamedTuple):
    """One broker, wherever it is registered."""

    cluster: str
    broker: str
    id: int
    addr: str


class Reported(NamedTuple):
    """What a name server holds of a broker, in short: two that hold the same have the same."""

    version: int
    """Counter of the broker's DataVersion."""
    digest: bytes

    def __str__(self) -> str:
        """In words."""
        return f"version {self.version}, content {self.digest.hex()[:8]}"


class IntentKey(NamedTuple):
    """What an intent is about."""

    intent: str
    """In words."""
    cluster: str
    """Empty: every cluster."""
    broker: str
    topic: str


class QueuesKey(NamedTuple):
    """A topic on a broker group: one row of a route."""

    cluster: str
    broker: str
    topic: str


def reported(digests: Iterable[pb.BrokerDigest]) -> dict[BrokerKey, Reported]:
    """What brokers report, by broker."""
    return {
        BrokerKey(row.cluster_name, row.broker_name, row.broker_id, row.broker_addr): Reported(
            row.data_version.counter, row.digest
        )
        for row in digests
    }


def intent_key(intent: admin_service_pb2.Intent) -> IntentKey:
    kind = INTENT_WORDS.get(intent.kind, f"intent {intent.kind}")
    return IntentKey(kind, intent.cluster_name, intent.broker_name, intent.topic)


def in_force(intents: Iterable[admin_service_pb2.Intent]) -> dict[IntentKey, str]:
    """Intents that are in force."""
    return dict.fromkeys(map(intent_key, intents), "in force")


def queues(topic: str, route: route_data_pb2.TopicRouteData, *, as_reported: bool = False) -> dict[QueuesKey, str]:
    """The rows of a route: permission, read queues and write queues of each group.

    Args:
        as_reported: Whether permissions are those that brokers report, and not those that readers get.
    """
    return {
        QueuesKey(row.cluster_name, row.broker_name, topic): (
            f"{PERMISSIONS[_perm(row, as_reported=as_reported) & 7]} {row.read_queue_nums}/{row.write_queue_nums}"
        )
        for row in route.queue_datas
    }


def _perm(row: route_data_pb2.QueueData, *, as_reported: bool) -> int:
    return row.reported_perm if as_reported and row.HasField("reported_perm") else row.perm


class Difference(NamedTuple):
    """Something that is not the same everywhere."""

    subject: Any
    """A key of what was compared."""
    said: tuple[str | None, ...]
    """What each name server says, in the order in which they were given; None of one that is not compared."""


def differences(held: Sequence[Mapping[Any, object] | None], absent: str = "not there") -> list[Difference]:
    """What is not the same everywhere, sorted.

    Args:
        held: What each name server holds; None of one that is not compared.
        absent: What a name server says of something that it does not hold.
    """
    members = [set(one.items()) for one in held if one is not None]
    differing = members[0].union(*members) - members[0].intersection(*members) if members else set()
    return [
        Difference(subject, tuple(None if one is None else str(one.get(subject, absent)) for one in held))
        for subject in sorted({subject for subject, _ in differing})
    ]
