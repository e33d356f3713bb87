"""RegistrationService: each rule on requests, registrations read before they wait, repeated heartbeats, and limits."""

from __future__ import annotations

import asyncio
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.app.access import Admission, Entered, FairShares, NamedBrokers, sharer_of
from namesrv.app.event_log import RegistrationCounter
from namesrv.app.writer import INLINE_TOPICS
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import (
    BrokerKey,
    DataVersion,
    LiveKey,
    QueueNumbers,
    RemovalReason,
    ReportedTopic,
    StaticMapping,
)
from namesrv.core.removals import unregister_broker
from namesrv.engines.api import Again
from namesrv.grpc_api import registration as calls
from namesrv.grpc_api.registration import RegistrationServicer
from namesrv_common.endpoints import MAX_ADDRESS_LENGTH
from namesrv_common.server.shares import MACHINE
from namesrv_common.topic_names import MAX_LABELS, Labels
from tests.support.calls_from_nowhere import CONTEXT, FakeEngineCall
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.patience import TIMEOUT
from tests.support.refusals import refuses
from tests.support.registrations import data_version, identity, registration, topic_config
from tests.unit.namesrv.servicers import holding, registration_servicer, until


def topic(
    name: str = "T", read: int | None = 1, write: int | None = 1, perm: int | None = 6, flag: int | None = None
) -> route_data_pb2.TopicConfig:
    return route_data_pb2.TopicConfig(
        topic=name, read_queue_nums=read, write_queue_nums=write, perm=perm, topic_sys_flag=flag
    )


def checked(*topics: route_data_pb2.TopicConfig) -> list[ReportedTopic]:
    return list(calls.read_topics(topics, ()).items())


def mapped(
    name: str = "T",
    *,
    scope: str = "__global__",
    total: int = 4,
    epoch: int = 7,
    topic_ids: Sequence[int] = (0, 3),
    broker_ids: Sequence[int] = (1, 0),
) -> route_data_pb2.TopicConfig:
    """A static topic with a mapping, which is good unless said otherwise."""
    message = topic_config(name)
    message.mapping.scope, message.mapping.total_queue_nums, message.mapping.epoch = scope, total, epoch
    message.mapping.topic_queue_ids.extend(topic_ids)
    message.mapping.broker_queue_ids.extend(broker_ids)
    return message


def queue_data(name: str = "broker-a", cluster: str = CLUSTER, **fields: Any) -> route_data_pb2.QueueData:
    numbers = {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, **fields}
    return route_data_pb2.QueueData(broker_name=name, cluster_name=cluster, **numbers)


def queues(*queue_datas: route_data_pb2.QueueData, topic: str = "New") -> dict[BrokerKey, QueueNumbers]:
    return calls.topic_queues(pb.RegisterTopicRequest(topic=topic, queue_datas=queue_datas))


Version = route_data_pb2.DataVersion
PARTS: dict[type, tuple[Callable[[Any], object], str]] = {
    route_data_pb2.BrokerIdentity: (calls.broker_identity, "broker."),
    route_data_pb2.TopicConfig: (lambda message: checked(topic("first"), message), "topic_configs[1]."),
    Version: (partial(calls.data_version, "version"), "version."),
    route_data_pb2.QueueData: (lambda message: queues(queue_data("broker-b"), message), "queue_datas[1]."),
}
"""What reads a part of a request, and where that is."""

LONGEST_ADDRESS = "h" * (MAX_ADDRESS_LENGTH - len(":1")) + ":1"


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        (identity(cluster=""), "cluster_name", "is empty"),
        (identity(name=""), "broker_name", "is empty"),
        (identity(broker_id=None), "broker_id", "is missing"),
        (identity(broker_id=-1), "broker_id", "is -1, must not be negative"),
        (identity(addr="host"), "broker_addr", "has no port"),
        (identity(addr=f"h{LONGEST_ADDRESS}"), "broker_addr", "has 261 characters, at most 260"),
        (topic(""), "topic", "is empty"),
        (topic("first"), "topic", "'first' is there twice"),
        (topic(read=None), "read_queue_nums", "is missing"),
        (topic(read=-1), "read_queue_nums", "is -1 for the topic 'T', 0 to 65535"),
        (topic(read=65_536), "read_queue_nums", "is 65536"),
        (topic(write=65_536), "write_queue_nums", "is 65536"),
        (topic(perm=8), "perm", "is 8 for the topic 'T', 0 to 7"),
        (topic(flag=-1), "topic_sys_flag", "is -1"),
        (Version(), "timestamp_millis", "is missing"),
        (Version(timestamp_millis=1), "counter", "is missing"),
        (Version(timestamp_millis=-1, counter=1), "timestamp_millis", "is -1, must not be negative"),
        (Version(timestamp_millis=1, counter=-1), "counter", "is -1, must not be negative"),
        (mapped(scope="a\tb"), "mapping.scope", "has characters that are not printable"),
        (mapped(total=-1), "mapping.total_queue_nums", "is -1 for 'T', must not be negative"),
        (mapped(epoch=-1), "mapping.epoch", "is -1 for 'T', must not be negative"),
        (mapped(broker_ids=(1,)), "mapping.broker_queue_ids", "has 1 queues for 'T', must have 2"),
        (mapped(topic_ids=()), "mapping.broker_queue_ids", "has 2 queues for 'T', must have 0"),
        (mapped(topic_ids=(0, 4)), "mapping.topic_queue_ids", "has 4 for 'T', must be 0 to 3, total_queue_nums - 1"),
        (mapped(topic_ids=(-1, 0)), "mapping.topic_queue_ids", "has -1 for 'T', must be 0 to 3"),
        (mapped(topic_ids=(3, 0)), "mapping.topic_queue_ids", "has 0 after 3 for 'T', must ascend"),
        (mapped(topic_ids=(3, 3)), "mapping.topic_queue_ids", "has 3 after 3 for 'T', must ascend"),
        (mapped(broker_ids=(0, 65_535)), "mapping.broker_queue_ids", "has 65535 for 'T', must be 0 to 65534"),
        (mapped(broker_ids=(-1, 0)), "mapping.broker_queue_ids", "has -1 for 'T', must be 0 to 65534"),
        (queue_data(name=""), "broker_name", "is empty"),
        (queue_data(cluster="a\tb"), "cluster_name", "has characters that are not printable"),
        (queue_data(read_queue_nums=None), "read_queue_nums", "is missing for the group 'broker-a'"),
        (queue_data(perm=8), "perm", "is 8 for the group 'broker-a', 0 to 7"),
        (queue_data(reported_perm=6), "reported_perm", "only answers have it"),
        (queue_data(mapping=route_data_pb2.StaticTopicMapping()), "mapping", "only answers have it"),
        (queue_data("broker-b"), "broker_name", "is there twice"),
    ],
)
def test_a_bad_part_names_its_place_field_and_rule(message: Message, field: str, problem: str) -> None:
    read, where = PARTS[type(message)]
    with refuses(Reason.INVALID_FIELD) as caught:
        read(message)
    assert caught.value.violations[0].field == where + field
    assert problem in caught.value.violations[0].description


def test_a_broker_identity_at_its_limits_is_accepted() -> None:
    for addr in ("[::1]:65535", LONGEST_ADDRESS):
        message = identity(addr, 2**63 - 1, "host-1.example.com", "c" * 127)
        assert calls.broker_identity(message) == (("c" * 127, "host-1.example.com"), 2**63 - 1, addr)


def test_topics_at_their_limits_are_accepted() -> None:
    long_names = ["x" * 127, "%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250]
    assert [name for name, _ in checked(*map(topic, long_names))] == long_names
    expected = [("T", (0, 65_535, 0, 0)), ("U", (65_535, 0, 7, 0))]
    assert checked(topic("T", 0, 65_535, 0), topic("U", 65_535, 0, 7)) == expected


def test_the_queues_of_a_single_topic_become_records() -> None:
    of_two = queues(queue_data(), queue_data(cluster="other", topic_sys_flag=3))
    assert of_two == {(CLUSTER, "broker-a"): (4, 4, 6, 0), ("other", "broker-a"): (4, 4, 6, 3)}


def test_a_single_topic_needs_a_name_queues_and_not_too_many_groups() -> None:
    with refuses(Reason.INVALID_FIELD) as caught:
        queues(topic="")
    told = [(violation.field, violation.description.partition(";")[0]) for violation in caught.value.violations]
    assert told == [("topic", "is empty"), ("queue_datas", "is empty")]
    most = [queue_data(f"broker-{number}") for number in range(limits.MAX_QUEUE_DATAS_PER_TOPIC)]
    assert len(queues(*most)) == limits.MAX_QUEUE_DATAS_PER_TOPIC
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        queues(*most, queue_data("one-more"))
    assert caught.value.metadata == {"name": "groups of one topic", "value": "1001", "limit": "1000"}


def test_a_topic_of_an_unregistered_group_is_refused_with_the_group(fleet: Fleet) -> None:
    fleet.register()
    elsewhere = BrokerKey("other-cluster", "broker-a")
    with refuses(Reason.BROKER_NOT_REGISTERED, match="broker group broker-a of cluster other-cluster") as caught:
        fleet.register_topic("New", {BrokerKey(CLUSTER, "broker-a"): (8, 8, 6, 0), elsewhere: (4, 4, 6, 0)})
    assert caught.value.metadata == {"cluster_name": "other-cluster", "broker_name": "broker-a"}


def test_too_many_topics_are_refused_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_TOPICS_PER_REGISTRATION", 2)
    assert len(checked(topic("a"), topic("b"))) == 2
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        checked(topic("a"), topic("b"), topic("c"))
    assert caught.value.metadata == {"name": "topics of one registration", "value": "3", "limit": "2"}


def request(**values: object) -> pb.RegisterBrokerRequest:
    made = pb.RegisterBrokerRequest(broker=identity(), data_version=data_version())
    made.MergeFrom(pb.RegisterBrokerRequest(**values))  # type: ignore[arg-type]
    return made


def test_filter_servers_are_absent_empty_or_checked() -> None:
    def servers(*addresses: str) -> tuple[str, ...] | None:
        given = pb.FilterServerList(filter_servers=addresses)
        return calls.read_registration(request(filter_servers=given)).filter_servers

    most = ["h:1"] * limits.MAX_FILTER_SERVERS
    assert calls.read_registration(request()).filter_servers is None
    assert (servers(), servers(*most)) == ((), tuple(most))
    with refuses(Reason.LIMIT_EXCEEDED):
        servers(*most, "h:1")
    with refuses(Reason.INVALID_FIELD, match=r"filter_servers\[0\]"):
        servers("h")


def test_labels_are_absent_empty_or_checked() -> None:
    def read(**labels: str) -> Labels | None:
        return calls.read_registration(request(labels=pb.BrokerLabels(labels=labels))).labels

    most = {f"key-{number:02}": "v" for number in range(MAX_LABELS)}
    assert calls.read_registration(request()).labels is None
    assert (read(), read(**most)) == ((), tuple(most.items()))
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        read(**most, more="")
    assert caught.value.metadata == {"name": "labels of a broker", "value": "17", "limit": "16"}
    with refuses(Reason.INVALID_FIELD, match=r"labels\.labels: has the key 'rack', whose value has 64 characters"):
        read(rack="v" * 64)


def test_a_heartbeat_timeout_is_taken_within_its_bounds() -> None:
    for millis in (1_000, 3_600_000):
        taken = calls.read_registration(request(heartbeat_timeout_millis=millis))
        assert taken.timeout_seconds == millis / 1000
    for millis in (-1, 0, 999, 3_600_001):
        with refuses(Reason.INVALID_FIELD, match="1000 to 3600000"):
            calls.read_registration(request(heartbeat_timeout_millis=millis))


def test_all_violations_of_a_registration_are_named_at_once() -> None:
    bad = pb.RegisterBrokerRequest(
        broker=identity(cluster="", broker_id=-1, addr="h"),
        data_version=route_data_pb2.DataVersion(counter=-1),
        ha_server_addr="",
        zone_name="a\tb",
        base_version=route_data_pb2.DataVersion(timestamp_millis=1),
        filter_servers=pb.FilterServerList(filter_servers=["h:1", "h"]),
        heartbeat_timeout_millis=1,
    )
    with refuses(Reason.INVALID_FIELD) as caught:
        calls.read_registration(bad)
    assert [violation.field for violation in caught.value.violations] == [
        "broker.cluster_name",
        "broker.broker_id",
        "broker.broker_addr",
        "ha_server_addr",
        "zone_name",
        "data_version.timestamp_millis",
        "data_version.counter",
        "filter_servers.filter_servers[1]",
        "base_version.counter",
        "heartbeat_timeout_millis",
    ]


def test_only_reasons_of_a_broker_can_be_given_for_an_unregistration() -> None:
    assert calls.unregister_reason(route_data_pb2.REMOVAL_REASON_UNSPECIFIED).name == "UNREGISTERED"
    assert calls.unregister_reason(route_data_pb2.REMOVAL_REASON_BROKER_DOWN).name == "BROKER_DOWN"
    with refuses(Reason.INVALID_FIELD, match="reason"):
        calls.unregister_reason(route_data_pb2.REMOVAL_REASON_EXPIRED)


def crc32(text: str) -> int:
    return zlib.crc32(text.encode())


@pytest.mark.parametrize(
    ("topics", "lines"),
    [
        ([topic("T", 1, 2, 6, 3)], "T 1 2 6 3\n"),
        ([topic("b", 4, 4), topic("a", 0, 65_535, 0)], "b 4 4 6 0\na 0 65535 0 0\n"),
        ([topic("späße", None, None, None)], "späße 0 0 0 0\n"),
    ],
)
def test_a_checksum_is_of_the_lines_in_the_order_sent(topics: list[route_data_pb2.TopicConfig], lines: str) -> None:
    calls.check_body_crc32(pb.RegisterBrokerRequest(topic_configs=topics, body_crc32=crc32(lines)))
    with refuses(Reason.CRC32_NOT_MATCH) as caught:
        calls.check_body_crc32(pb.RegisterBrokerRequest(topic_configs=topics, body_crc32=1))
    assert caught.value.metadata == {"stated": "1", "actual": str(crc32(lines))}


@pytest.mark.parametrize("checksum", [None, 0])
def test_an_absent_checksum_and_zero_are_not_checked(checksum: int | None) -> None:
    calls.check_body_crc32(pb.RegisterBrokerRequest(topic_configs=[topic()], body_crc32=checksum))


def test_a_mapping_is_read_with_its_topic_also_if_the_group_has_no_queue_now() -> None:
    mapping, empty = StaticMapping("__global__", 4, 7, False, ((0, 1), (3, 0))), StaticMapping("", 0, 0, False, ())
    of_none = mapped("Empty", scope="", total=0, epoch=0, topic_ids=(), broker_ids=())
    ordinary = ("Ordinary", (4, 4, 6, 0))
    expected = [ordinary, ("T", (4, 4, 6, 0, mapping)), ("Empty", (4, 4, 6, 0, empty))]
    assert checked(topic_config("Ordinary"), mapped(), of_none) == expected


def test_the_queues_of_all_mappings_together_have_a_limit() -> None:
    half = tuple(range(limits.MAX_MAPPED_QUEUES // 2))
    one, two = (mapped(name, total=len(half), topic_ids=half, broker_ids=half) for name in ("T1", "T2"))
    assert len(checked(one, two)) == 2
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        checked(one, two, mapped("T3"))
    assert caught.value.metadata == {
        "name": "queues in mappings of one registration",
        "value": str(limits.MAX_MAPPED_QUEUES + 2),
        "limit": str(limits.MAX_MAPPED_QUEUES),
    }


@pytest.fixture
def servicer() -> RegistrationServicer:
    return registration_servicer(Fleet())


async def test_an_open_channel_does_not_keep_its_request(servicer: RegistrationServicer) -> None:
    request = pb.OpenChannelRequest(holder="a broker")
    before = sys.getrefcount(request)
    async with aclosing(servicer.OpenChannel(request, CONTEXT)) as stream:  # type: ignore[type-var]
        await anext(stream)
        assert sys.getrefcount(request) == before


async def test_a_handover_without_a_channel_is_told_that_it_needs_one(servicer: RegistrationServicer) -> None:
    with refuses(Reason.INVALID_FIELD, match="^channel_id: is missing; a handover is of a channel$"):
        await servicer.HandOverChannel(pb.HandOverChannelRequest(), CONTEXT)


LARGE = [f"T{number}" for number in range(3 * INLINE_TOPICS)]


@pytest.mark.parametrize("before", [[], LARGE], ids=["small", "large"])
async def test_a_bad_registration_is_refused_and_never_stands_in_line(fleet: Fleet, before: list[str]) -> None:
    servicer = registration_servicer(fleet)
    with capture_logs() as logs:
        async with holding(servicer.writer, fleet.state):
            bad = asyncio.create_task(servicer.RegisterBroker(registration([*before, "not\ta name"]), CONTEXT))
            await asyncio.sleep(0)
            assert servicer.writer.waiting == 1, "the change that keeps it busy"
            assert bad.done() == (not before), "many topics wait for the thread, which makes the change"
        with refuses(Reason.INVALID_FIELD, match=rf"topic_configs\[{len(before)}\].topic"):
            await bad
    assert fleet.state.revision == 0
    (line,) = logs
    assert (line["event"], line["broker"], line["reason"]) == ("registration_refused", "broker-a", "INVALID_FIELD")


async def test_small_registrations_and_held_ones_do_not_wait_for_the_thread(fleet: Fleet) -> None:
    servicer = registration_servicer(fleet)
    await servicer.RegisterBroker(registration(LARGE), CONTEXT)
    go_on = threading.Event()
    working = asyncio.create_task(servicer.writer.read(lambda: go_on.wait(TIMEOUT), "a"))
    await asyncio.sleep(0)
    async with asyncio.timeout(TIMEOUT):
        assert not (await servicer.RegisterBroker(registration(LARGE), CONTEXT)).changed
        assert (await servicer.RegisterBroker(registration(["T1"], counter=2), CONTEXT)).changed
        large = asyncio.create_task(servicer.RegisterBroker(registration(LARGE, counter=3), CONTEXT))
        await asyncio.sleep(0)
        assert (large.done(), servicer.writer.waiting) == (False, 0), "its topics wait to be read"
    go_on.set()
    await working
    await large


async def test_topics_are_read_after_all_if_the_broker_has_left_meanwhile(fleet: Fleet) -> None:
    servicer = registration_servicer(fleet)
    request = registration(["T1"])
    await servicer.RegisterBroker(request, CONTEXT)
    broker = BrokerKey(request.broker.cluster_name, request.broker.broker_name)
    async with holding(servicer.writer, fleet.state):
        leaving = unregister_broker(fleet.state, broker, request.broker.broker_addr, RemovalReason.UNREGISTERED)
        left = asyncio.create_task(servicer.writer.apply(leaving, sharer_of(CONTEXT).name))
        await until(lambda: servicer.writer.waiting == 2)
        registered = asyncio.create_task(servicer.RegisterBroker(request, CONTEXT))
        await until(lambda: servicer.writer.waiting == 3)
    assert await left
    assert (await registered).changed
    assert fleet.topics >= {"T1"}


async def test_topics_under_way_are_bounded_until_they_are_answered(fleet: Fleet) -> None:
    servicer = registration_servicer(fleet, registered_topics=FairShares(registered_topics=4).registered_topics)
    async with holding(servicer.writer, fleet.state):
        first = asyncio.create_task(servicer.RegisterBroker(registration(["a", "b", "c"]), CONTEXT))
        await until(lambda: servicer.writer.waiting == 2)
        with refuses(Reason.OVERLOADED, match="topics of registrations under way: 5 is over the limit of 4 for all"):
            await servicer.RegisterBroker(registration(["d", "e"]), CONTEXT)
        other = asyncio.create_task(servicer.RegisterBroker(registration(["d"]), CONTEXT))
        await until(lambda: servicer.writer.waiting == 3)
    await first
    await other
    await servicer.RegisterBroker(registration(["a", "b", "c", "d"]), CONTEXT)


KEY = LiveKey(CLUSTER, A)
HEARTBEAT = pb.BrokerHeartbeatRequest(broker=identity(A))


def question(counter: int = 1) -> pb.QueryDataVersionRequest:
    return pb.QueryDataVersionRequest(broker=identity(A), data_version=data_version(counter))


class World:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.tally = RegistrationCounter()
        self.servicer = registration_servicer(self.fleet, tally=self.tally)

    def call(self, request: Any) -> tuple[bytes | None, Again | None]:
        """The answer, None if there is no such broker; and what answers the call when it comes again."""
        context: Any = FakeEngineCall()
        beats = isinstance(request, pb.BrokerHeartbeatRequest)
        answer = self.servicer.BrokerHeartbeat if beats else self.servicer.QueryDataVersion
        try:
            return asyncio.run(cast("Any", answer)(request, context)), context.again
        except Refused as error:
            if error.reason != Reason.BROKER_NOT_REGISTERED:
                raise
            return None, context.again

    def renew(self) -> int | None:
        return self.fleet.state.liveness.last_update_millis.get(KEY)

    def known(self, request: Any) -> Again:
        again = self.call(request)[1]
        assert again is not None
        return again


def change_another_topic(fleet: Fleet) -> None:
    number = fleet.state.revision
    fleet.register(B, name="broker-c", topics=(f"Topic{number}",), version=DataVersion(1_000, number))


STEPS: dict[str, Callable[[Fleet], object]] = {
    "register": lambda fleet: fleet.register(A),
    "register another version": lambda fleet: fleet.register(A, version=DataVersion(1_000, 2)),
    "register another id": lambda fleet: fleet.register(A, 1),
    "register another name": lambda fleet: fleet.register(A, name="broker-b"),
    "another address takes its id": lambda fleet: fleet.register(B),
    "topic by topic": lambda fleet: fleet.register(A, topic_by_topic=True),
    "another topic changes": change_another_topic,
    "unregister": lambda fleet: fleet.unregister(A),
}


@given(st.lists(st.sampled_from(list(STEPS)), max_size=12))
def test_again_it_does_what_the_whole_call_does_or_nothing(steps: list[str]) -> None:
    world = World()
    world.fleet.register(A)
    known = [(request, world.known(request)) for request in (HEARTBEAT, question())]
    assert +world.tally.counts == {("heartbeat", "unchanged"): 1, ("query", "unchanged"): 1}
    for step in steps:
        STEPS[step](world.fleet)
        for at, (request, again) in enumerate(known):
            world.fleet.clock.advance(1.0)
            before, counted = world.renew(), +world.tally.counts
            answer, heard, counts = again(), world.renew(), world.tally.counts - counted
            expected, more = world.call(request)
            if answer is None:
                assert (heard, counts) == (before, {})
            else:
                assert (answer, heard, counts) == (expected, world.renew(), world.tally.counts - counted - counts)
            known[at] = request, more or again


@pytest.mark.parametrize("request_", [HEARTBEAT, question()], ids=["heartbeat", "question"])
def test_what_concerns_other_brokers_leaves_it_known_and_the_answer_tells_of_the_revision(request_: Any) -> None:
    world = World()
    world.fleet.register(A)
    again = world.known(request_)
    for _ in range(3):
        before = again()
        change_another_topic(world.fleet)
        assert again() not in (None, before)
        assert again() == world.call(request_)[0]


def test_a_question_whose_answer_is_a_registration_is_not_known() -> None:
    world = World()
    world.fleet.register(A)
    assert world.call(question(counter=2))[1] is None
    assert world.call(pb.BrokerHeartbeatRequest(broker=identity(B)))[1] is None
    assert +world.tally.counts == {("query", "changed"): 1, ("heartbeat", "refused"): 1}


async def test_a_registration_is_counted_by_what_it_carries_and_whether_it_changed_something(fleet: Fleet) -> None:
    tally = RegistrationCounter()
    servicer = registration_servicer(fleet, tally=tally)
    for _ in range(3):
        await servicer.RegisterBroker(registration(), CONTEXT)
    for topics, counter in ((["T"], 2), ([], 2)):
        request = registration(topics, counter=counter)
        request.base_version.CopyFrom(data_version(counter - 1 if topics else counter))
        await servicer.RegisterBroker(request, CONTEXT)
    await servicer.RegisterBroker(registration([], identity(B)), CONTEXT)
    assert +tally.counts == {
        ("full", "changed"): 2,
        ("full", "unchanged"): 2,
        ("increment", "changed"): 1,
        ("refresh", "unchanged"): 1,
    }


ENTERED = Entered(None, MACHINE)


async def test_one_live_broker_too_many_is_refused_while_others_register_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LIVE_BROKERS", 2)
    servicer = registration_servicer(fleet)
    brokers = [identity(f"127.0.0.1:{port}", name=f"broker-{port}") for port in (1, 2, 3)]
    for broker in (*brokers[:2], *brokers[:2]):
        await servicer.RegisterBroker(registration(broker=broker), CONTEXT)
    before = fleet.state.revision
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        await servicer.RegisterBroker(registration(broker=brokers[2]), CONTEXT)
    assert caught.value.metadata == {"name": "live brokers", "value": "3", "limit": "2"}
    assert fleet.state.revision == before


def test_large_requests_are_taken_up_to_a_limit_and_small_ones_always() -> None:
    method = pb.DESCRIPTOR.services_by_name["RegistrationService"].methods_by_name["RegisterBroker"]
    memory = Admission(method, FairShares(request_bytes=3 * limits.MAX_MESSAGE_BYTES), None)
    taken = [memory.take(ENTERED, limits.MAX_MESSAGE_BYTES) for _ in range(3)]
    with refuses(Reason.OVERLOADED, match=f"over the limit of {3 * limits.MAX_MESSAGE_BYTES}"):
        memory.take(ENTERED, limits.SMALL_REQUEST_BYTES + 1)
    assert memory.take(ENTERED, limits.SMALL_REQUEST_BYTES) == 0
    memory.give_back(ENTERED, taken.pop())
    assert memory.take(ENTERED, limits.SMALL_REQUEST_BYTES + 1) == limits.SMALL_REQUEST_BYTES + 1


def test_permits_are_asked_about_no_more_groups_than_a_call_may_name(fleet: Fleet) -> None:
    request = pb.RegisterTopicRequest(queue_datas=[route_data_pb2.QueueData()] * 30_000)
    named = list(NamedBrokers(fleet.state).of(request))
    assert len(named) == limits.MAX_QUEUE_DATAS_PER_TOPIC + 1
