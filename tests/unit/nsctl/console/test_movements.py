"""Brokers that come and leave, as all viewers see it."""

from __future__ import annotations

from nsctl.compare import BrokerKey
from nsctl.console.observer import Observation
from nsctl.console.views.brokers import MOST_LEFT, NAMED, SHOWN_MILLIS, Json, Movements, broker_rows
from tests.support.fakes.observed_name_server import START_MILLIS, live, seen

OTHER = BrokerKey("east", "broker-b", 0, "10.0.0.2:10911")
MANY = [OTHER._replace(broker=f"broker-{number}") for number in range(NAMED + 1)]


class Looked:
    def __init__(self) -> None:
        self.movements, self.now = Movements(), START_MILLIS

    def at(self, *observations: Observation, after_millis: int = 1_000) -> list[Json]:
        """Those that left, as they are shown."""
        self.now += after_millis
        return self.movements.note(observations, broker_rows(observations, self.now), self.now)

    def news(self) -> list[str]:
        return [sentence["text"] for sentence in self.movements.news()]


def test_who_leaves_is_shown_for_a_minute_and_told_and_so_is_who_comes() -> None:
    looked = Looked()
    assert looked.at(seen(live(), live(OTHER))) == []
    assert looked.news() == [], "nobody came: they were there when the console looked first"
    (left,) = looked.at(seen(live()))
    assert (left["broker"], left["state"], left["leftAt"]) == ("broker-b", "left", looked.now)
    assert looked.news() == ["broker-b (10.0.0.2:10911) of east left"]
    assert len(looked.at(seen(live()), after_millis=SHOWN_MILLIS)) == 1
    assert looked.at(seen(live()), after_millis=1) == []
    looked.at(seen(live(), live(OTHER)))
    assert looked.news()[1:] == ["broker-b (10.0.0.2:10911) of east came"]
    assert [sentence["number"] for sentence in looked.movements.news()] == [1, 2]


def test_who_left_is_no_longer_shown_once_the_clock_was_set_back() -> None:
    looked = Looked()
    looked.at(seen(live(OTHER)))
    assert len(looked.at(seen())) == 1
    assert looked.at(seen(), after_millis=-60 * SHOWN_MILLIS) == []


def test_who_is_back_is_not_shown_as_left() -> None:
    looked = Looked()
    looked.at(seen(live(OTHER)))
    assert len(looked.at(seen())) == 1
    assert looked.at(seen(live(OTHER))) == []


def test_many_at_once_are_counted() -> None:
    looked = Looked()
    looked.at(seen(*map(live, MANY)))
    assert len(looked.at(seen())) == len(MANY)
    assert looked.news() == [f"{len(MANY)} brokers left"]


def test_while_no_name_server_answers_or_one_was_not_asked_yet_nobody_is_said_to_have_left() -> None:
    looked = Looked()
    looked.at(seen(live(OTHER)))
    assert looked.at(seen(problem="UNAVAILABLE: gone")) == []
    assert looked.at(seen(), Observation(seen().endpoint)) == []
    assert looked.news() == []
    assert len(looked.at(seen())) == 1


def test_of_a_fleet_that_leaves_so_many_are_kept() -> None:
    looked = Looked()
    looked.at(seen(*(live(OTHER._replace(broker=f"b-{number}")) for number in range(MOST_LEFT + 1))))
    assert len(looked.at(seen())) == MOST_LEFT
