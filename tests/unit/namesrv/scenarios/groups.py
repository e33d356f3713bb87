"""Groups that upstream's tests of the name server start from, and short ways to say what operators do."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2

from namesrv.core.changes import Cause
from namesrv.core.model import (
    WRITE,
    Behaviour,
    BrokerKey,
    DataVersion,
    HoldKey,
    Intent,
    IntentKind,
    IntentTable,
    RegisterBrokerResult,
    ReportedTopic,
)
from namesrv.core.operator_changes import IntentsChange, OperatorOutcome, TopicDeletion
from tests.support.core_fleet import CLUSTER, HA, VERSION, A, B, Fleet
from tests.support.state_changes import apply_now

OTHER_CLUSTER = "other-cluster"
GROUP = BrokerKey(CLUSTER, "broker-a")
TEST = Cause("test")
BASE_TOPIC = "baseTopic"
"""Upstream's tests always register it, because version 5 refuses a first registration of a single topic."""


def version(counter: int, state_version: int = 0) -> DataVersion:
    return DataVersion(1_000 * counter, counter, state_version)


class ReplicatedFleet(Fleet):
    """Groups of a master at A and a slave at B, as in RouteInfoManagerNewTest: a slave may stand in."""

    def __init__(self, *, acting: bool = True, **behaviour: bool) -> None:
        super().__init__(Behaviour(support_acting_master=True, **behaviour))
        self._acting = acting

    def master(
        self, *topics: str | ReportedTopic, addr: str = A, name: str = "broker-a", version: DataVersion = VERSION
    ) -> RegisterBrokerResult:
        return self._member(addr, 0, topics, name, version)

    def slave(
        self, *topics: str | ReportedTopic, addr: str = B, name: str = "broker-a", version: DataVersion = VERSION
    ) -> RegisterBrokerResult:
        return self._member(addr, 1, topics, name, version)

    def _member(
        self, addr: str, broker_id: int, topics: tuple[str | ReportedTopic, ...], name: str, version: DataVersion
    ) -> RegisterBrokerResult:
        topics = (BASE_TOPIC, *topics)
        return self.register(
            addr, broker_id, topics, name=name, version=version, ha=HA, enable_acting_master=self._acting
        )


def known_route(fleet: Fleet, topic: str = "TopicTest") -> route_data_pb2.TopicRouteData:
    route = fleet.route(topic)
    assert route is not None, f"no route for {topic}"
    return route


def perms(fleet: Fleet, topic: str = "TopicTest") -> list[int]:
    return [queue.perm for queue in known_route(fleet, topic).queue_datas]


def is_writable(fleet: Fleet, topic: str = "TopicTest") -> bool:
    return any(perm & WRITE for perm in perms(fleet, topic))


def names(fleet: Fleet, topic: str = "TopicTest") -> list[str]:
    """The groups in a topic's route; its queues are of the same ones."""
    route = known_route(fleet, topic)
    groups = [group.broker_name for group in route.broker_datas]
    assert [queue.broker_name for queue in route.queue_datas] == groups
    return groups


def wipe(fleet: Fleet, group: BrokerKey = GROUP) -> OperatorOutcome:
    return decide(fleet, IntentKind.WIPE_WRITE_PERM, group)


def add(fleet: Fleet, group: BrokerKey = GROUP) -> OperatorOutcome:
    return decide(fleet, IntentKind.ADD_WRITE_PERM, group)


def hold(fleet: Fleet, topic: str) -> OperatorOutcome:
    return decide(fleet, IntentKind.TOPIC_HOLD, HoldKey(topic, None))


def decide(fleet: Fleet, kind: IntentKind, key: BrokerKey | HoldKey) -> OperatorOutcome:
    intent = Intent(kind, key, "operator", since_millis=fleet.clock.wall_millis())
    return apply_now(IntentsChange(fleet.state, fleet.state.intents.with_intent(intent), TEST))


def lift_all(fleet: Fleet) -> OperatorOutcome:
    return apply_now(IntentsChange(fleet.state, IntentTable(), TEST))


def delete_topic(fleet: Fleet, topic: str, cluster_name: str | None = None) -> OperatorOutcome:
    return apply_now(TopicDeletion(fleet.state, topic, cluster_name, TEST))


def all_topics(fleet: Fleet) -> list[str]:
    return fleet.state.topic_lists.all()("", 1_000)
