"""Search over the topics of several name servers."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from nsctl.console.observer import Fleet
from nsctl.console.views.topics import LEAST_AGE_SECONDS, PAGE, TopicSearch
from tests.support.fakes.observed_name_server import FakeNameServer
from tests.support.timing import console_timing
from tests.support.virtual_clock import VirtualClock


class Searched:
    def __init__(self) -> None:
        self.time = VirtualClock(0.0)
        self.servers = (FakeNameServer(), FakeNameServer("127.0.0.1:9877"))
        self.fleet = Fleet(self.servers, console_timing(self.time))
        self.search = TopicSearch(self.fleet)

    def page(self, contains: str = "", start: int = 0, *, differing: bool = False, kind: str = "") -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            for observer in self.fleet.observers:
                await observer.observe()
            return await self.search.page(contains, start, differing=differing, kind=kind)

        return asyncio.run(ask())

    def names(self, contains: str = "", *, differing: bool = False) -> list[str]:
        return [topic["name"] for topic in self.page(contains, differing=differing)["topics"]]


def test_names_of_all_are_found_in_any_case_those_that_begin_so_first() -> None:
    searched = Searched()
    searched.servers[0].topics = ["archive-orders", "orders-new", "payments"]
    searched.servers[1].topics = ["Orders", "archive-orders", "payments"]
    assert searched.names("ORDERS") == ["Orders", "orders-new", "archive-orders"]
    assert searched.names("", differing=True) == ["Orders", "orders-new"]
    assert searched.page("orders-new")["topics"][0]["missingAt"] == [1]


def test_topics_of_applications_come_before_all_others() -> None:
    searched = Searched()
    searched.servers[0].topics = searched.servers[1].topics = ["BenchmarkTest", "%RETRY%be", "cube", "benches"]
    assert searched.names() == ["benches", "cube", "%RETRY%be", "BenchmarkTest"]
    assert searched.names("be") == ["benches", "cube", "BenchmarkTest", "%RETRY%be"]


def test_pages_follow_one_another() -> None:
    searched = Searched()
    searched.servers[0].topics = [f"topic-{number:03}" for number in range(PAGE + 1)]
    assert len(searched.page("topic")["topics"]) == PAGE
    assert [topic["name"] for topic in searched.page("topic", PAGE)["topics"]] == [f"topic-{PAGE:03}"]
    assert searched.page("topic", 10 * PAGE)["topics"] == []


def test_names_are_read_again_only_after_a_change_and_not_too_often() -> None:
    searched = Searched()
    searched.names()
    searched.servers[0].revision += 1
    searched.servers[0].topics = ["later"]
    assert "later" not in searched.names()
    searched.time.advance(LEAST_AGE_SECONDS)
    assert "later" in searched.names()
    assert searched.servers[0].calls.count("ListTopics") == 2
    assert searched.servers[1].calls.count("ListTopics") == 1


def test_one_that_does_not_tell_is_named_and_the_others_are_searched() -> None:
    searched = Searched()
    searched.servers[0].fail(grpc.StatusCode.PERMISSION_DENIED, "ListTopics", reason="NOT_PERMITTED")
    found = searched.page()
    assert found["problems"][0]["reason"] == "NOT_PERMITTED"
    assert found["topics"] == [{"name": "orders", "kind": "normal", "missingAt": []}]


def test_each_topic_has_a_kind_and_those_of_one_kind_are_found() -> None:
    searched = Searched()
    theirs, ours = ["%DLQ%billing", "%RETRY%billing", "orders", "steps"], ["TBW102", "broker-a", "east_REPLY_TOPIC"]
    searched.servers[0].topics = theirs + ours
    searched.servers[0].ordered = ["steps"]
    found = searched.page()
    assert {topic["name"]: topic["kind"] for topic in found["topics"]} == {
        "%DLQ%billing": "dead-letter",
        "%RETRY%billing": "retry",
        "TBW102": "system",
        "broker-a": "system",
        "east_REPLY_TOPIC": "system",
        "orders": "normal",
        "steps": "ordered",
    }
    assert found["kinds"] == {"dead-letter": 1, "retry": 1, "system": 3, "normal": 1, "ordered": 1}
    assert [topic["name"] for topic in searched.page(kind="retry")["topics"]] == ["%RETRY%billing"]


def test_where_the_order_of_queues_is_not_told_no_topic_is_ordered() -> None:
    searched = Searched()
    searched.servers[0].ordered = ["orders"]
    searched.servers[0].fail(grpc.StatusCode.PERMISSION_DENIED, "ListKvConfigs", reason="NOT_PERMITTED")
    assert [topic["kind"] for topic in searched.page()["topics"]] == ["normal"]
