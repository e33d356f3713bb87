"""The page of one broker group."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from namesrv_api.v1 import admin_service_pb2, route_data_pb2

from nsctl.console.observer import Fleet
from nsctl.console.views.brokers import KEPT, LEAST_AGE_SECONDS, TOPICS_PAGE, BrokerPages, GroupKey
from tests.support.fakes.observed_name_server import BROKER, FakeNameServer, live
from tests.support.timing import console_timing
from tests.support.virtual_clock import VirtualClock

GROUP = GroupKey("east", "broker-a")


def queues(broker: str = "broker-a", perm: int = 6, reported: int | None = None) -> route_data_pb2.QueueData:
    return route_data_pb2.QueueData(
        cluster_name="east",
        broker_name=broker,
        read_queue_nums=8,
        write_queue_nums=4,
        perm=perm,
        reported_perm=reported,
    )


class Looked:
    def __init__(self) -> None:
        self.time = VirtualClock(0.0)
        self.servers = (FakeNameServer(), FakeNameServer("127.0.0.1:9877"))
        for server in self.servers:
            server.queues = [queues(perm=4, reported=6), queues("broker-b")]
        self.fleet = Fleet(self.servers, console_timing(self.time))
        self.pages = BrokerPages(self.fleet)

    def page(self, contains: str = "", start: int = 0, group: GroupKey = GROUP) -> dict[str, Any]:
        async def ask() -> dict[str, Any]:
            for observer in self.fleet.observers:
                await observer.observe()
            for server in self.servers:
                server.calls.clear()
            return await self.pages.page(group, contains, start)

        return asyncio.run(ask())

    def was_read(self, at: int = 0) -> bool:
        return "StreamRouteSnapshot" in self.servers[at].calls


def test_its_topics_are_told_with_permissions_those_reported_and_kinds() -> None:
    looked = Looked()
    looked.servers[0].topics = ["orders", "%RETRY%billing", "broker-a"]
    told = looked.page()["topics"]
    assert (told["at"], told["total"]) == (0, 3)
    assert {row["topic"]: row["kind"] for row in told["rows"]} == {
        "%RETRY%billing": "retry",
        "broker-a": "system",
        "orders": "normal",
    }
    assert told["rows"][0].items() >= {"topic": "orders", "read_queue_nums": 8, "perm": 4, "reported_perm": 6}.items()


def test_topics_of_applications_come_first_and_each_part_is_in_order() -> None:
    looked = Looked()
    looked.servers[0].topics = ["%RETRY%billing", "payments", "%DLQ%billing", "TBW102", "broker-a", "orders"]
    assert [row["topic"] for row in looked.page()["topics"]["rows"]] == [
        *("orders", "payments"),
        *("%DLQ%billing", "%RETRY%billing", "TBW102", "broker-a"),
    ]


def test_topics_are_searched_and_paged() -> None:
    looked = Looked()
    looked.servers[0].topics = [f"topic-{number:03}" for number in range(TOPICS_PAGE + 1)] + ["orders"]
    assert looked.page("PIC-")["topics"]["matched"] == TOPICS_PAGE + 1
    assert [row["topic"] for row in looked.page("topic", TOPICS_PAGE)["topics"]["rows"]] == [f"topic-{TOPICS_PAGE:03}"]


def test_topics_are_read_again_only_after_a_change_and_not_too_often() -> None:
    looked = Looked()
    looked.page()
    assert (looked.was_read(0), looked.was_read(1)) == (True, False)
    looked.time.advance(LEAST_AGE_SECONDS)
    looked.page()
    assert not looked.was_read()
    looked.servers[0].revision += 1
    looked.page()
    assert looked.was_read()
    looked.servers[0].revision += 1
    looked.page()
    assert not looked.was_read(), "it was read a moment ago"


def test_of_many_groups_the_topics_of_those_looked_at_last_are_kept() -> None:
    looked = Looked()
    groups = [GroupKey("east", f"broker-{number}") for number in range(KEPT + 1)]
    for server in looked.servers:
        server.lives = [live(BROKER._replace(broker=group.broker)) for group in groups]
    for group in groups:
        looked.page(group=group)
    looked.page(group=groups[1])
    assert not looked.was_read()
    looked.page(group=groups[0])
    assert looked.was_read()


def test_the_first_name_server_that_answers_and_has_it_is_asked() -> None:
    looked = Looked()
    looked.servers[0].lives = []
    assert looked.page()["topics"]["at"] == 1
    looked.servers[1].fail(grpc.StatusCode.UNAVAILABLE, "GetNamesrvStatus")
    assert looked.page()["topics"] == {
        "at": None,
        "total": 0,
        "matched": 0,
        "start": 0,
        "pageSize": TOPICS_PAGE,
        "rows": [],
    }


def test_what_fails_is_told_and_does_not_hide_the_rest() -> None:
    looked = Looked()
    looked.page()
    looked.servers[0].revision += 1
    looked.time.advance(LEAST_AGE_SECONDS)
    looked.servers[0].fail(grpc.StatusCode.PERMISSION_DENIED, "StreamRouteSnapshot", reason="NOT_PERMITTED")
    looked.servers[0].entries = [admin_service_pb2.AuditEntry(applied_at_millis=1, summary="something")]
    told = looked.page()
    assert told["topics"]["problem"]["reason"] == "NOT_PERMITTED"
    assert [entry["summary"] for entry in told["history"]] == ["something"]


def test_who_registered_an_address_last_is_told() -> None:
    looked = Looked()
    looked.servers[0].entries = [
        admin_service_pb2.AuditEntry(applied_at_millis=at, cause=cause, caller=caller, summary=summary)
        for at, cause, caller, summary in (
            (3, "RegisterBroker", "CN=agent-2", "broker-a (10.0.0.1:10911, id 0) of east registered"),
            (2, "channel end", "", "broker-a (10.0.0.1:10911, id 0) of east lost its channel"),
            (1, "RegisterBroker", "CN=agent-1", "broker-a (10.0.0.1:10911, id 0) of east registered: new group"),
        )
    ]
    assert looked.page()["registeredBy"] == {"10.0.0.1:10911": "CN=agent-2"}
