"""The watch program in Python keeps a route if a broker left it without a sign of its end."""

from __future__ import annotations

import threading

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from examples.watch import watch as program

TOPIC = "TopicTest"
KEPT = f"{TOPIC}: its brokers may live, so its route is kept for 120 s"
LOST = f"{TOPIC}: no route"


def routed() -> pb.TopicRouteChange:
    """A group with a master and a slave has the topic."""
    change = pb.TopicRouteChange(topic=TOPIC)
    group = change.route.broker_datas.add(broker_name="broker-a")
    for broker_id in (0, 1):
        group.broker_addrs.add(broker_id=broker_id, broker_addr=f"10.0.0.{broker_id}:10911")
    return change


def lost(**reasons: str) -> pb.TopicRouteChange:
    """No broker has it: each of these left for that reason."""
    change = pb.TopicRouteChange(topic=TOPIC)
    for who, reason in reasons.items():
        ids = {"master": 0, "slave": 1}
        change.removals.add(
            broker_name="" if who == "all" else "broker-a",
            broker_id=ids.get(who),
            reason=route_data_pb2.RemovalReason.Value(f"REMOVAL_REASON_{reason}"),
        )
    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lost(master="UNREGISTERED", slave="BROKER_DOWN"), LOST),
        (lost(group="NOT_IN_REGISTRATION"), LOST),
        (lost(all="DELETED_BY_OPERATOR"), LOST),
        (lost(master="UNREGISTERED", slave="CHANNEL_CLOSED"), KEPT),
        (lost(master="UNREGISTERED"), KEPT),
        (lost(), KEPT),
    ],
)
def test_a_route_is_lost_at_once_only_if_each_of_its_brokers_is_known_to_have_ended(
    change: pb.TopicRouteChange, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = program.Watch([TOPIC])
    watch.take(routed())
    watch.take(change)
    for hold in watch.holds.values():
        hold.cancel()
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_topic_that_never_had_a_route_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    program.Watch([TOPIC]).take(lost())
    assert capsys.readouterr().out.splitlines() == [LOST]


def test_a_route_is_kept_until_its_time_is_over_or_a_new_one_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timers: list[threading.Timer] = []

    def note(timer: threading.Timer) -> None:
        timers.append(timer)

    monkeypatch.setattr(threading.Timer, "start", note)
    watch = program.Watch([TOPIC])
    for change in (routed(), lost(), routed(), lost()):
        watch.take(change)
    first, second = timers
    assert (first.finished.is_set(), second.finished.is_set(), second.interval) == (True, False, 120)
    second.function(*second.args)
    assert capsys.readouterr().out.splitlines()[-2:] == [KEPT, LOST]
    assert watch.brokers == {}
