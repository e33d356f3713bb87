"""Operators' calls in tests, and what the tables say afterwards."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2, route_service_pb2

from namesrv.core.changes import Cause
from namesrv.core.model import BrokerKey, DataVersion, HoldKey, Intent, IntentKey, IntentKind
from namesrv.core.operator_changes import IntentsChange, OperatorOutcome, TopicDeletion
from namesrv.core.state_change import apply_now
from tests.support.core_fleet import CLUSTER, Fleet

GROUP = BrokerKey(CLUSTER, "broker-a")
CAUSE = Cause("test", "an operator", "because")
NEWER = DataVersion(2_000, 2)
C = "127.0.0.1:30911"


def decide(fleet: Fleet, kind: IntentKind, key: IntentKey, *, validate_only: bool = False) -> OperatorOutcome:
    table = fleet.state.intents.with_intent(Intent(kind, key, "an operator", fleet.clock.wall_millis()))
    return apply_now(IntentsChange(fleet.state, table, CAUSE, validate_only=validate_only))


def wipe(fleet: Fleet, key: BrokerKey = GROUP, *, validate_only: bool = False) -> OperatorOutcome:
    return decide(fleet, IntentKind.WIPE_WRITE_PERM, key, validate_only=validate_only)


def add(fleet: Fleet, key: BrokerKey = GROUP) -> OperatorOutcome:
    return decide(fleet, IntentKind.ADD_WRITE_PERM, key)


def hold(
    fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None, *, validate_only: bool = False
) -> OperatorOutcome:
    return decide(fleet, IntentKind.TOPIC_HOLD, HoldKey(topic, cluster), validate_only=validate_only)


def lift(fleet: Fleet, *keys: IntentKey, validate_only: bool = False) -> OperatorOutcome:
    table = fleet.state.intents.without(keys)
    return apply_now(IntentsChange(fleet.state, table, CAUSE, validate_only=validate_only))


def delete(
    fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None, *, validate_only: bool = False
) -> OperatorOutcome:
    return apply_now(TopicDeletion(fleet.state, topic, cluster, CAUSE, validate_only=validate_only))


def queues(fleet: Fleet, topic: str = "TopicTest") -> dict[tuple[str, str], route_data_pb2.QueueData]:
    """A topic's queues by cluster and group."""
    route = fleet.route(topic)
    return {(data.cluster_name, data.broker_name): data for data in route.queue_datas} if route else {}


def perms(fleet: Fleet, topic: str = "TopicTest") -> list[tuple[int, int | None]]:
    """Permission in force and, if it is there, the reported one, of each of the topic's groups."""
    return [
        (data.perm, data.reported_perm if data.HasField("reported_perm") else None)
        for data in queues(fleet, topic).values()
    ]


def snapshot_queues(fleet: Fleet) -> dict[str, list[route_data_pb2.QueueData]]:
    """Queues by topic as a snapshot has them."""
    response = route_service_pb2.StreamRouteSnapshotResponse
    chunks = (response.FromString(message).chunk for message in fleet.state.snapshot().messages())
    return {row.topic: list(row.queue_datas) for chunk in chunks for row in chunk.topics}


def lose_three_of_four(fleet: Fleet) -> None:
    """Four groups of one topic lose three brokers one after another, and the guard brings those back."""
    channels = [fleet.heartbeats.open_channel() for _ in range(4)]
    for number, channel_id in enumerate(channels):
        fleet.register(f"127.0.0.{number + 1}:1", name=f"broker-{number}", channel_id=channel_id)
    for channel_id in channels[:3]:
        fleet.end_channel(channel_id)
    assert len(fleet.state.unconfirmed) == 3
