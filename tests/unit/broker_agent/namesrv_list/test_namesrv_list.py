"""NamesrvList: what is in force, who is told, and that nothing bad replaces something good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from broker_agent.namesrv_list import (
    FIRST_LOOKUP_SECONDS,
    MAX_NAME_SERVERS,
    RESOLVE_PERIOD_SECONDS,
    ListSource,
    NamesrvList,
    OnNames,
    namesrv_list_of,
)
from broker_agent.timing import Timing
from namesrv_common.endpoints import Endpoint
from tests.support.fakes.name_system import NameSystem, endpoints
from tests.support.patience import TIMEOUT
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock


class Source(ListSource):
    """A source whose list the test changes."""

    def __init__(self) -> None:
        self.on_names: OnNames | None = None
        self.stopped = False

    def start(self, on_names: OnNames) -> None:
        self.on_names = on_names

    def say(self, text: str) -> None:
        assert self.on_names is not None
        self.on_names(endpoints(text))

    def stop(self) -> None:
        self.stopped = True

    def join(self, seconds: float) -> None:
        pass


class Following:
    """A list on virtual time, what its listener was told, and its source."""

    def __init__(self, names: str, system: NameSystem) -> None:
        self.time = VirtualClock()
        self.source = Source()
        self.told: list[tuple[Endpoint, ...]] = []
        self.list = NamesrvList(endpoints(names), self.source, agent_timing(self.time), system.resolve, self.time.wait)
        self.list.on_change(self.told.append)


@pytest.fixture
def system() -> NameSystem:
    return NameSystem(ns="10.0.0.1 10.0.0.2", other="10.0.1.1")


@pytest.fixture
def follow(system: NameSystem) -> Iterator[Callable[[str], Following]]:
    started: list[Following] = []

    def start(names: str) -> Following:
        started.append(Following(names, system))
        started[-1].list.start()
        return started[-1]

    yield start
    system.answer_all()
    for following in started:
        following.list.stop()


def test_addresses_and_names_may_be_mixed_and_each_address_counts_once(
    follow: Callable[[str], Following], system: NameSystem
) -> None:
    following = follow("10.0.9.9:1 ns:1 10.0.0.2:1 other:2 [::1]:3")
    assert following.list.endpoints == endpoints("10.0.9.9:1 10.0.0.1:1 10.0.0.2:1 10.0.1.1:2 [::1]:3")
    assert sorted(system.asked) == ["ns", "other"]


def test_the_list_at_the_start_is_told_nobody(follow: Callable[[str], Following]) -> None:
    assert follow("ns:1").told == []


def test_an_address_that_appears_behind_a_name_is_told(follow: Callable[[str], Following], system: NameSystem) -> None:
    following = follow("ns:1 10.0.9.9:1")
    system.set("ns", "10.0.0.1 10.0.0.2 10.0.0.3")
    following.time.run(2 * RESOLVE_PERIOD_SECONDS)
    assert following.told == [endpoints("10.0.0.1:1 10.0.0.2:1 10.0.0.3:1 10.0.9.9:1")]
    assert following.list.endpoints == following.told[-1]


def test_a_new_list_is_in_force_and_told_once_its_names_have_been_looked_up(follow: Callable[[str], Following]) -> None:
    following = follow("ns:1")
    following.source.say("other:1 10.0.9.9:1")
    assert following.told == [endpoints("10.0.1.1:1 10.0.9.9:1")]


def test_names_that_left_the_list_are_not_looked_up_any_more(
    follow: Callable[[str], Following], system: NameSystem
) -> None:
    following = follow("ns:1")
    following.source.say("other:1")
    asked = system.asked.count("ns")
    following.time.run(10 * RESOLVE_PERIOD_SECONDS)
    assert system.asked.count("ns") == asked
    assert system.asked.count("other") > 5


def test_a_name_that_stays_on_the_list_is_not_looked_up_anew(
    follow: Callable[[str], Following], system: NameSystem
) -> None:
    following = follow("ns:1")
    following.source.say("ns:1 other:1")
    assert system.asked == ["ns", "other"]


def test_a_list_of_names_that_nobody_knows_replaces_nothing(
    follow: Callable[[str], Following], system: NameSystem
) -> None:
    following = follow("ns:1")
    following.source.say("unknown:1")
    assert following.list.endpoints == endpoints("10.0.0.1:1 10.0.0.2:1")
    assert following.told == []
    system.set("unknown", "10.0.2.2")
    following.time.run(2 * RESOLVE_PERIOD_SECONDS)
    assert following.told == [endpoints("10.0.2.2:1")]


def test_a_name_that_is_not_known_at_the_start_prevents_nothing_and_joins_later(
    follow: Callable[[str], Following], system: NameSystem
) -> None:
    following = follow("unknown:1 10.0.9.9:1")
    assert following.list.endpoints == endpoints("10.0.9.9:1")
    system.set("unknown", "10.0.2.2")
    following.time.run(2 * RESOLVE_PERIOD_SECONDS)
    assert following.told == [endpoints("10.0.2.2:1 10.0.9.9:1")]


def test_a_lookup_that_hangs_holds_up_the_start_for_5_seconds_and_no_other_name(system: NameSystem) -> None:
    system.hanging.add("other")
    time, waited = VirtualClock(), list[float]()

    def wait(event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return time.wait(event, seconds)
        waited.append(seconds)
        return event.wait(0)

    namesrv = NamesrvList(endpoints("other:1 10.0.9.9:1"), None, agent_timing(time), system.resolve, wait)
    changed = threading.Event()
    namesrv.on_change(lambda _: changed.set())
    namesrv.start()
    assert max(waited) == FIRST_LOOKUP_SECONDS
    assert namesrv.endpoints == endpoints("10.0.9.9:1")
    system.answer_all()
    assert changed.wait(TIMEOUT)
    assert namesrv.endpoints == endpoints("10.0.1.1:1 10.0.9.9:1")
    namesrv.stop()


def test_more_addresses_than_allowed_are_cut_off_and_that_is_logged_once(
    follow: Callable[[str], Following], system: NameSystem
) -> None:
    following = follow("ns:1")
    for host in range(3):
        system.set("ns", " ".join(f"10.0.{host}.{i}" for i in range(MAX_NAME_SERVERS + 1)))
        with capture_logs() as logs:
            following.time.run(3 * RESOLVE_PERIOD_SECONDS)
        assert len(following.list.endpoints) == MAX_NAME_SERVERS
        assert [entry["event"] for entry in logs].count("namesrv_list_cut") == (1 if host == 0 else 0)


def test_after_stop_nobody_is_told_anything(follow: Callable[[str], Following]) -> None:
    following = follow("ns:1")
    following.list.stop()
    following.source.say("other:1")
    assert following.told == []
    assert following.source.stopped


@pytest.mark.parametrize(
    ("namesrv", "problem"),
    [
        (["file:/no/such/list"], "^/no/such/list: No such file or directory$"),
        (["file:/list", "http://h/"], "file: stands alone"),
        (["http://g/", "http://h/"], "two address servers cannot both say"),
        (["a:1", "ftp://h/"], "is not of the form http://"),
        (["a"], "address 'a' has no port"),
    ],
)
def test_settings_that_make_no_list_are_refused(namesrv: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        namesrv_list_of(namesrv, timing=Timing())
