"""Each check notices what it is for: histories made by hand, sound ones and broken ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.invariants import violations
from tests.faults.invariants.lookups import BY_NAME
from tests.faults.story import MASTER, SERVER, SOUND, Story, row_of, story

__all__ = ["story"]  # pytest finds the fixture by its name in this module


def test_a_sound_history_breaks_nothing(story: Story) -> None:
    for second in range(2, 40):
        story.lookup(second)
    assert story.broken() == []


def test_a_topic_of_a_sound_master_must_be_found(story: Story) -> None:
    story.lookup(SOUND)
    story.lookup(SOUND + 1, lacks=("T0", "only-broker-b"))
    assert story.broken() == ["found", "found"]


def test_a_name_server_that_was_killed_and_came_back_has_no_excuse(story: Story) -> None:
    story.lookup(SOUND)
    story.add(SOUND + 1, "process", name=SERVER, event="killed")
    story.add(SOUND + 2, "process", name=SERVER, event="started")
    story.lookup(SOUND + 3, lacks=("T0", "only-broker-b"))
    assert story.broken() == ["found", "found"]


@pytest.mark.parametrize(
    "excuse",
    [
        {"what": "process", "name": MASTER, "event": "stopped"},
        {"what": "link", "client": MASTER, "server": SERVER, "event": "reset"},
        {"what": "topics", "group": "broker-b", "version": 2, "topics": []},
    ],
)
def test_a_broker_that_was_disturbed_or_no_longer_reports_a_topic_need_not_be_found(
    story: Story, excuse: dict[str, Any]
) -> None:
    story.lookup(SOUND)
    story.add(SOUND + 0.5, **excuse)
    story.lookup(SOUND + 1, lacks=("T0", "only-broker-b"))
    assert story.broken() == []


@pytest.mark.parametrize(
    "loss",
    [
        {"what": "process", "name": MASTER, "event": "killed"},
        {"what": "process", "name": MASTER, "event": "stopped"},
        {"what": "link", "client": MASTER, "server": SERVER, "event": "cut"},
    ],
)
def test_a_lost_broker_must_leave_the_routes_within_its_bound(story: Story, loss: dict[str, Any]) -> None:
    story.add(SOUND, **loss)
    story.lookup(SOUND + 14)
    assert story.broken() == []
    story.lookup(SOUND + 16)
    assert story.broken() == ["gone"]


def test_a_lost_broker_of_rocketmq_has_the_time_of_its_silence() -> None:
    story = Story("broker-d")
    story.add(SOUND, "process", name="broker-d-0", event="stopped")
    story.lookup(SOUND + 30)
    assert story.broken() == []
    story.lookup(SOUND + 32)
    assert story.broken() == ["gone"]


def test_a_broker_must_be_at_its_own_address(story: Story) -> None:
    story.lookup(SOUND, addr="127.0.0.1:10911")
    assert story.broken() == ["whole"]


@pytest.mark.parametrize("event", ["killed", "ended"])
def test_the_end_of_a_broker_of_rocketmq_is_told_by_its_connection(event: str) -> None:
    story = Story("broker-d")
    story.add(SOUND, "process", name="broker-d-0", event=event)
    story.lookup(SOUND + 14)
    assert story.broken() == []
    story.lookup(SOUND + 16)
    assert story.broken() == ["gone"]


@pytest.mark.parametrize("healed_at", [SOUND - 5, SOUND + 5])
def test_nobody_tells_of_the_end_of_a_broker_of_rocketmq_whose_way_was_not_sound(healed_at: float) -> None:
    story = Story("broker-d")
    link = {"client": "broker-d-0", "server": SERVER}
    story.add(SOUND - 10, "link", event="half open", server_knows=False, **link)
    story.add(healed_at, "link", event="healed", **link)
    story.add(SOUND, "process", name="broker-d-0", event="killed")
    story.lookup(SOUND + 30)
    assert story.broken() == []
    story.lookup(SOUND + 32)
    assert story.broken() == ["gone"]


def test_a_broker_that_came_back_after_such_an_end_has_a_connection_that_tells_again() -> None:
    story = Story("broker-d")
    link = {"client": "broker-d-0", "server": SERVER}
    story.add(2, "link", event="half open", server_knows=False, **link)
    story.add(3, "link", event="healed", **link)
    for at, event in ((4, "killed"), (5, "starting"), (6, "started"), (SOUND, "killed")):
        story.add(at, "process", name="broker-d-0", event=event)
    story.lookup(SOUND + 16)
    assert story.broken() == ["gone"]


@pytest.mark.parametrize("group", ["broker-b", "broker-d"])
def test_a_broker_must_be_found_from_its_first_start_on_and_after_another_once_it_is_long_over(group: str) -> None:
    story = Story(group)
    story.lookup(2)
    story.lookup(3, lacks=("T0", "only-broker-b"))
    assert story.broken() == ["found", "found"]
    story = Story(group)
    story.add(1.5, "process", name=f"{group}-0", event="killed")
    story.add(1.7, "process", name=f"{group}-0", event="started")
    story.lookup(2)
    story.lookup(3, lacks=("T0", "only-broker-b"))
    assert story.broken() == []


def test_a_name_server_that_was_down_when_a_broker_was_lost_has_time_from_its_return_on(story: Story) -> None:
    story.add(SOUND, "process", name=SERVER, event="killed")
    story.add(SOUND + 1, "process", name=MASTER, event="killed")
    story.lookup(SOUND + 99.9)
    story.add(SOUND + 100, "process", name=SERVER, event="started")
    story.lookup(SOUND + 179)
    assert story.broken() == []
    story.lookup(SOUND + 181)
    assert story.broken() == ["gone"]


def test_a_broker_may_be_in_routes_before_its_agent_says_that_it_has_started(story: Story) -> None:
    story.add(SOUND, "process", name=MASTER, event="killed")
    story.add(SOUND + 25, "process", name=MASTER, event="starting")
    story.lookup(SOUND + 26)
    assert story.broken() == []
    story.add(SOUND + 27, "process", name=MASTER, event="started")
    story.lookup(SOUND + 28)
    assert story.broken() == []


def test_a_name_server_that_did_not_run_itself_has_longer(story: Story) -> None:
    story.add(SOUND, "process", name=MASTER, event="killed")
    story.add(SOUND + 1, "log", server=SERVER, event="own_stall", seen_at=SOUND + 1)
    story.lookup(SOUND + 16)
    assert story.broken() == []
    story.lookup(SOUND + 100)
    assert story.broken() == ["gone"]


def test_topics_of_two_tables_at_one_revision_are_half_a_registration(story: Story) -> None:
    story.add(SOUND, "topics", group="broker-b", version=2, topics=["T0", "only-broker-b"])
    story.lookup(SOUND + 1, T0=2)
    assert "whole" in story.broken()


def test_a_table_with_a_topic_too_few_or_too_many_is_half_a_registration(story: Story) -> None:
    story.add(SOUND, "topics", group="broker-b", version=2, topics=["T0", "T1", "only-broker-b"])
    story.lookup(SOUND + 1, version=2, lacks=("T1",))
    story.lookup(SOUND + 2, version=2, T1=2, T2=2)
    assert story.broken() == ["whole", "whole"]


def test_an_older_table_must_not_come_back(story: Story) -> None:
    story.add(SOUND, "topics", group="broker-b", version=2, topics=["T0", "only-broker-b"])
    story.lookup(SOUND + 1, version=2)
    story.lookup(SOUND + 2, version=1)
    assert story.broken() == ["forward"]


def _wrote(story: Story, at: float, value: str | None, outcome: str = "ok") -> None:
    story.add(at, "write", server=SERVER, item="kv k0", value=value, began=at - 0.1, outcome=outcome)


def _read(story: Story, at: float, value: str | None) -> None:
    story.add(at, "read", server=SERVER, began=at - 0.1, values={"kv k0": value})


def test_what_was_acknowledged_must_be_read(story: Story) -> None:
    _wrote(story, 10, "1")
    _read(story, 11, "1")
    _wrote(story, 12, "2")
    _read(story, 13, "1")
    assert story.broken() == ["writes"]


def test_a_write_without_an_answer_may_have_been_made_or_not_but_not_undone_again(story: Story) -> None:
    _wrote(story, 10, "1")
    _wrote(story, 11, "2", "unknown")
    _read(story, 12, "1")
    _read(story, 13, "2")
    _read(story, 14, "2")
    assert story.broken() == []
    _read(story, 15, "1")
    assert story.broken() == ["writes"]


def test_a_refused_write_must_not_be_read(story: Story) -> None:
    _wrote(story, 10, "1")
    _wrote(story, 11, "2", "no")
    _read(story, 12, "2")
    assert story.broken() == ["writes"]


def _told(story: Story, at: float, before: list[Any], after: list[Any], **removal: Any) -> None:
    known = [
        {
            "groups": {"broker-b": groups} if groups else {},
            "route": repr(groups),
            "stale": None,
            "origin": "o",
            "revision": at,
        }
        for groups in (before, after)
    ]
    told = {"topic": "T0", "before": known[0], "after": known[1], "removals": [removal] if removal else []}
    story.add(at, "told", client="client-1", pid=7, seen_at=at, told=told)


BROKER = [[0, BY_NAME[MASTER].addr]]


def test_a_client_must_not_lose_a_route_without_a_decision(story: Story) -> None:
    _told(story, 10, BROKER, [], group="broker-b", id=0, reason="CHANNEL_CLOSED")
    assert story.broken() == ["clients"]


def test_a_client_may_lose_a_route_by_a_decision(story: Story) -> None:
    _told(story, 10, BROKER, [], group="broker-b", id=0, reason="UNREGISTERED")
    assert story.broken() == []


def test_a_client_must_tell_without_gaps(story: Story) -> None:
    _told(story, 10, [], BROKER)
    _told(story, 11, [[0, "127.0.0.1:1"]], BROKER)
    assert story.broken() == ["clients"]


def test_a_watch_must_hold_what_lookups_found(story: Story) -> None:
    header = {"namesrv_name": SERVER, "epoch": "1", "revision": "210"}
    watch = {"watcher": "w", "server": SERVER, "stream": 1}
    row = row_of("T0", 9, BY_NAME[MASTER].addr, "broker-b")
    story.lookup(21)
    story.add(20, "watch", event="opened", request={"topics": ["T0"]}, **watch)
    message = {"header": header, "changes": [row], "bookmark": True}
    story.add(22, "watch", event="message", message=message, **watch)
    assert story.broken() == ["watches"]


def test_name_servers_must_agree_in_the_end(story: Story) -> None:
    story.add(61, "agreed", seconds=10.0, difference="namesrv-2 lacks a broker")
    assert story.broken() == ["agreement"]


def test_that_agreement_was_never_looked_at_is_noticed() -> None:
    assert violations([]) == ["agreement: it was never looked at"]


@pytest.mark.parametrize(("what", "more"), [("files", 9), ("threads", 9), ("tasks", 17), ("rss_kib", 50_000)])
def test_what_is_left_over_is_noticed(story: Story, what: str, more: int) -> None:
    held = {"name": SERVER, "pid": 7, "files": 30, "threads": 10, "tasks": 40, "rss_kib": 60_000}
    story.add(5, "sample", phase="before", **held)
    story.add(55, "sample", phase="after", **{**held, what: held[what] + more})  # type: ignore[operator]
    assert story.broken() == ["left over"]


def test_a_watch_that_stayed_open_is_noticed(story: Story) -> None:
    story.add(55, "watches", open=9, expected=8)
    assert story.broken() == ["left over"]
