"""Questions and fleets for the tests of explanations."""

from __future__ import annotations

from typing import Any

from namesrv_api.v1.admin_service_pb2 import RouteExplanation

from namesrv.core.changes import Cause
from namesrv.core.explain import CurrentState, Question, explain_route
from namesrv.core.model import BrokerKey, DataVersion, HoldKey, Intent, IntentKey, IntentKind
from namesrv.core.operator_changes import IntentsChange
from tests.support.core_fleet import CLUSTER, Fleet
from tests.support.state_changes import apply_now

CAUSE = Cause("test", "an operator", "because")
GROUP = BrokerKey(CLUSTER, "broker-a")
NEWER = DataVersion(2_000, 2)
STARTED_AT = 1_700_000_000_000
START = "2023-11-14T22:13:20.000Z"
T0 = "2023-11-14T22:30:00.000Z"
"""When a fleet's clock begins."""
T10 = "2023-11-14T22:30:10.000Z"
"""Ten seconds later."""
T0_MILLIS = STARTED_AT + 1_000_000
T10_MILLIS = T0_MILLIS + 10_000


def explain(fleet: Fleet, topic: str = "TopicTest", **question: Any) -> list[RouteExplanation]:
    now = CurrentState(fleet.state, STARTED_AT, Question(topic, **question))
    return explain_route(now, fleet.state.change_log.newest_first())


def only(fleet: Fleet, topic: str = "TopicTest", **question: Any) -> RouteExplanation:
    (explanation,) = explain(fleet, topic, **question)
    return explanation


def decide(fleet: Fleet, kind: IntentKind, key: IntentKey, comment: str = "because") -> None:
    intent = Intent(kind, key, "an operator", fleet.clock.wall_millis(), comment)
    apply_now(IntentsChange(fleet.state, fleet.state.intents.with_intent(intent), CAUSE))


def hold(fleet: Fleet, topic: str = "TopicTest", cluster: str | None = None) -> None:
    decide(fleet, IntentKind.TOPIC_HOLD, HoldKey(topic, cluster))
