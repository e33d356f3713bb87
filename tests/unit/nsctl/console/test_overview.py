"""What is shown of several observations, and where they differ."""

from __future__ import annotations

from dataclasses import replace

from namesrv_api.v1 import admin_service_pb2, route_service_pb2

from groundwork.endpoints import Endpoint
from nsctl.compare import BrokerKey
from nsctl.console.observer import Observation
from nsctl.console.views.brokers import broker_rows
from nsctl.console.views.overview import (
    GROUPS_NAMED,
    SETTLED_MILLIS,
    Json,
    SettledDifferences,
    found_differences,
    overview,
)
from tests.support.fakes.observed_name_server import START_MILLIS, live, seen

OTHER = BrokerKey("east", "broker-b", 0, "10.0.0.2:10911")
DRAIN = admin_service_pb2.Intent(
    kind=admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM, cluster_name="east", broker_name="broker-a"
)


def shown(*observations: Observation, after_millis: int = 0) -> Json:
    now = START_MILLIS + after_millis
    rows = broker_rows(observations, now)
    return overview(observations, rows, SettledDifferences(), now) | {"brokers": rows}


def states(told: Json) -> dict[str, str]:
    return {broker["broker"]: broker["state"] for broker in told["brokers"]}


def guarding(observation: Observation, brokers: int, ends_at_millis: int | None) -> Observation:
    """The same name server, whose guard holds brokers."""
    assert observation.status is not None
    status = route_service_pb2.GetNamesrvStatusResponse(
        guard_tripped=True, guarded_broker_count=brokers, guard_ends_at_millis=ends_at_millis
    )
    status.MergeFrom(observation.status)
    return replace(observation, status=status)


def test_a_broker_is_live_at_all_partly_there_unconfirmed_or_late() -> None:
    both = live()
    assert states(shown(seen(both), seen(both))) == {"broker-a": "live"}
    partly = shown(seen(both, live(OTHER)), seen(both))
    assert states(partly) == {"broker-a": "live", "broker-b": "partly"}
    assert partly["brokers"][1]["missingAt"] == [1]
    unconfirmed = live(unconfirmed=True)
    assert states(shown(seen(unconfirmed), seen(unconfirmed))) == {"broker-a": "unconfirmed"}
    assert states(shown(seen(unconfirmed), seen(both))) == {"broker-a": "live"}
    doubted = live()
    doubted.doubt_ends_at_millis = START_MILLIS + 43_000
    told = shown(seen(doubted, clock_ahead=0), seen(doubted, clock_ahead=1_000))
    assert states(told) == {"broker-a": "doubted"}
    assert told["brokers"][0]["doubtEndsAt"] == START_MILLIS + 43_000
    assert states(shown(seen(doubted), seen(both))) == {"broker-a": "live"}
    assert states(shown(seen(both), after_millis=60_000)) == {"broker-a": "live"}
    assert states(shown(seen(both), after_millis=60_001)) == {"broker-a": "late"}


def test_the_guard_is_told_with_how_many_which_groups_where_and_until_when() -> None:
    held = seen(live(unconfirmed=True), live(OTHER, unconfirmed=True))
    assert shown(held)["guard"] is None, "a snapshot file has unconfirmed brokers, too"
    assert shown(guarding(held, 2, START_MILLIS + 600_000), guarding(held, 1, START_MILLIS + 500_000), held)[
        "guard"
    ] == {
        "servers": [0, 1],
        "brokers": 2,
        "groupCount": 2,
        "groups": [{"cluster": "east", "broker": "broker-a"}, {"cluster": "east", "broker": "broker-b"}],
        "endsAt": START_MILLIS + 600_000,
    }
    assert shown(guarding(held, 0, None))["guard"]["endsAt"] is None


def test_of_very_many_groups_the_guard_names_the_first() -> None:
    lives = [live(OTHER._replace(broker=f"broker-{number:03}"), unconfirmed=True) for number in range(GROUPS_NAMED + 1)]
    told = shown(guarding(seen(*lives), len(lives), None))["guard"]
    assert (len(told["groups"]), told["groupCount"]) == (GROUPS_NAMED, GROUPS_NAMED + 1)


def test_while_one_answers_what_an_unreachable_one_said_says_nothing_about_brokers() -> None:
    told = shown(seen(live(OTHER), problem="UNAVAILABLE: gone"), seen(live()))
    assert states(told) == {"broker-a": "live"}
    assert [server["state"] for server in told["servers"]] == ["unreachable", "ready"]
    assert not told["stale"]


def test_if_none_answers_what_they_said_last_is_shown_as_stale() -> None:
    told = shown(seen(live(OTHER), problem="UNAVAILABLE: gone"), seen(live(), problem="UNAVAILABLE: gone"))
    assert set(states(told)) == {"broker-a", "broker-b"}
    assert told["stale"]


def test_before_anybody_was_asked_nothing_is_stale() -> None:
    told = shown(Observation(Endpoint("127.0.0.1", 9876)))
    assert (told["stale"], told["brokers"], told["servers"][0]["state"]) == (False, [], "connecting")


def test_intents_are_told_once_with_the_name_servers_that_have_them() -> None:
    told = shown(seen(live(), intents=(DRAIN,)), seen(live(), intents=(DRAIN,)))
    (intent,) = told["intents"]
    assert (intent["kind"], intent["broker_name"], intent["servers"]) == ("WIPE_WRITE_PERM", "broker-a", [0, 1])


def test_a_kind_of_intent_that_only_newer_name_servers_know_is_shown_by_its_number() -> None:
    newer = admin_service_pb2.Intent.FromString(b"\x08\x63")
    assert [intent["kind"] for intent in shown(seen(live(), intents=(newer,)))["intents"]] == ["99"]


def test_name_servers_that_answer_differ_in_brokers_and_in_intents() -> None:
    gone = seen(problem="UNAVAILABLE: gone")
    assert found_differences((seen(live()), seen(live()), gone)) == []
    (missing, intent) = found_differences((seen(live(), live(OTHER), intents=(DRAIN,)), gone, seen(live())))
    assert (missing.subject, missing.said[1:]) == (OTHER, (None, "not there"))
    assert (intent.subject.intent, intent.said) == ("drain", ("in force", None, "not in force"))


def test_a_difference_is_told_as_soon_after_the_clock_was_set_back() -> None:
    settled, differing, set_back = SettledDifferences(), (seen(live()), seen()), START_MILLIS - 3_600_000
    settled.of(differing, START_MILLIS)
    assert settled.of(differing, set_back) == []
    ((_, since),) = settled.of(differing, set_back + SETTLED_MILLIS)
    assert since == set_back


def test_a_difference_is_told_when_it_lasts_with_the_time_since_when() -> None:
    settled = SettledDifferences()
    differing = (seen(live()), seen())
    assert settled.of(differing, START_MILLIS) == []
    assert settled.of(differing, START_MILLIS + SETTLED_MILLIS - 1) == []
    ((_, since),) = settled.of(differing, START_MILLIS + SETTLED_MILLIS)
    assert since == START_MILLIS
    assert settled.of((seen(live()), seen(live())), START_MILLIS + 6_000) == []
    assert settled.of(differing, START_MILLIS + 12_000) == []
