"""Several journals as one."""

from __future__ import annotations

import pytest
from namesrv_api.v1 import admin_service_pb2

from nsctl.console.views.journal import SAME_MILLIS, Entry, caller_words, cut_at, entry_json, mentions, merged


def entry(
    at: int, server: int = 0, summary: str = "broker-a registered", revision: int = 1, epoch: str = "1-a"
) -> Entry:
    told = admin_service_pb2.AuditEntry(
        applied_at_millis=at, revision=revision, summary=summary, caller=f"ipv4:10.0.0.1:{4000 + server}", epoch=epoch
    )
    return entry_json(told, server)


def test_what_two_say_of_one_event_is_one_entry_and_the_newest_comes_first() -> None:
    found = merged([entry(100, 1), entry(100 + SAME_MILLIS, 0), entry(50, 0, "else")])
    assert [(one["at"], one["servers"], one["summary"]) for one in found] == [
        (100 + SAME_MILLIS, [0, 1], "broker-a registered"),
        (50, [0], "else"),
    ]


def test_what_is_further_apart_or_said_twice_by_one_stays_apart() -> None:
    assert len(merged([entry(100, 1), entry(101 + SAME_MILLIS, 0)])) == 2
    assert len(merged([entry(100, 0), entry(101, 0)])) == 2


def test_entries_of_two_epochs_with_one_revision_stay_apart() -> None:
    now, before = entry(100, epoch="2-b"), entry(100, epoch="1-a")
    found = merged([now, before, entry(101, 1, epoch="7-c")])
    assert [(one["servers"], one["positions"]) for one in found] == [
        ([0, 1], ["2-b 1", "7-c 1"]),
        ([0], ["1-a 1"]),
    ], "the page tells entries apart by their positions"


@pytest.mark.parametrize(
    ("caller", "words"),
    [("ipv4:10.0.0.1:4000", "10.0.0.1"), ("ipv6:[::1]:4000", "[::1]"), ("operator:7", "operator:7"), ("", "")],
)
def test_an_address_is_told_without_its_port_and_a_name_as_it_is(caller: str, words: str) -> None:
    assert caller_words(caller) == words


def test_a_page_ends_before_the_millisecond_that_may_lack_entries() -> None:
    entries = [entry(300), entry(200), entry(100)]
    assert cut_at(entries, 0) == (entries, None)
    assert cut_at(entries, 200) == (entries[:1], 201)
    assert cut_at(entries[1:], 200) == (entries[1:2], 200)


@pytest.mark.parametrize(
    ("summary", "named"),
    [
        (
            (
                "b-1 (10.0.0.1:10911, id 0) of east lost its channel: group gone; "
                "5 topics lost their queues on it (orders, %RETRY%x, pay, and 2 more)"
            ),
            [("b-1", "east"), "orders", "%RETRY%x", "pay"],
        ),
        ("b-1 of east: 1 topic put without write permission (orders)", [("b-1", "east"), "orders"]),
        ("b-1 of east: wipe of its write permission decided", [("b-1", "east")]),
        ("b-1 ([::1]:10911, id 0) of east registered: 2 of the group unconfirmed now", [("b-1", "east")]),
        ("hold of topic orders in all clusters decided", []),
        ("KV configuration: 'b of c: x' \"it's b of c\" put: 'b of c; '... (2 characters)", []),
        ("KV configuration: 'a' 'it is cut at \\'b of c; x...", []),
        ("", []),
    ],
)
def test_the_brokers_and_topics_that_a_summary_names_are_found(summary: str, named: list[object]) -> None:
    found = mentions(summary)
    assert [one.get("topic") or (one["broker"], one["cluster"]) for one in found] == named
    for one in found:
        assert summary[one["at"] :].startswith(one.get("topic") or one["broker"])
