"""Every rule on registrations: what is accepted at the limit, what is refused one past it, and what the error names."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv import limits
from namesrv.core.errors import Reason
from namesrv.core.model import ReportedTopic, StaticMapping
from namesrv.grpc_api import registration
from namesrv_common.topic_names import MAX_MAPPED_QUEUES
from tests.support.refusals import refuses
from tests.support.registrations import data_version, identity, topic_config


def topic(
    name: str = "T", read: int | None = 1, write: int | None = 1, perm: int | None = 6, flag: int | None = None
) -> route_data_pb2.TopicConfig:
    return route_data_pb2.TopicConfig(
        topic=name, read_queue_nums=read, write_queue_nums=write, perm=perm, topic_sys_flag=flag
    )


def checked(*topics: route_data_pb2.TopicConfig) -> list[ReportedTopic]:
    return list(registration.read_topics(topics, ()).items())


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


DataVersion = route_data_pb2.DataVersion
PARTS: dict[type, tuple[Callable[[Any], object], str]] = {
    route_data_pb2.BrokerIdentity: (registration.broker_identity, "broker."),
    route_data_pb2.TopicConfig: (lambda message: checked(topic("first"), message), "topic_configs[1]."),
    DataVersion: (partial(registration.data_version, "version"), "version."),
}
"""What reads a part of a registration, and where that is."""


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        (identity(cluster=""), "cluster_name", "is empty"),
        (identity(name=""), "broker_name", "is empty"),
        (identity(broker_id=None), "broker_id", "is missing"),
        (identity(broker_id=-1), "broker_id", "is -1, must not be negative"),
        (identity(addr="host"), "broker_addr", "has no port"),
        (topic(""), "topic", "is empty"),
        (topic(read=None), "read_queue_nums", "is missing"),
        (topic(read=-1), "read_queue_nums", "is -1 for the topic 'T', 0 to 65535"),
        (topic(read=65_536), "read_queue_nums", "is 65536"),
        (topic(write=65_536), "write_queue_nums", "is 65536"),
        (topic(perm=8), "perm", "is 8 for the topic 'T', 0 to 7"),
        (topic(flag=-1), "topic_sys_flag", "is -1"),
        (DataVersion(), "timestamp_millis", "is missing"),
        (DataVersion(timestamp_millis=1), "counter", "is missing"),
        (DataVersion(timestamp_millis=-1, counter=1), "timestamp_millis", "is -1, must not be negative"),
        (DataVersion(timestamp_millis=1, counter=-1), "counter", "is -1, must not be negative"),
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
    ],
)
def test_a_bad_part_names_its_place_field_and_rule(message: Message, field: str, problem: str) -> None:
    read, where = PARTS[type(message)]
    with refuses(Reason.INVALID_FIELD) as caught:
        read(message)
    assert caught.value.violations[0].field == where + field
    assert problem in caught.value.violations[0].description


def test_a_broker_identity_at_its_limits_is_accepted() -> None:
    message = identity("[::1]:65535", 2**63 - 1, "host-1.example.com", "c" * 127)
    assert registration.broker_identity(message) == (("c" * 127, "host-1.example.com"), 2**63 - 1, "[::1]:65535")


def test_topics_at_their_limits_are_accepted() -> None:
    long_names = ["x" * 127, "%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250]
    assert [name for name, _ in checked(*map(topic, long_names))] == long_names
    expected = [("T", (0, 65_535, 0, 0)), ("U", (65_535, 0, 7, 0))]
    assert checked(topic("T", 0, 65_535, 0), topic("U", 65_535, 0, 7)) == expected


def test_a_topic_twice_in_one_registration_is_refused() -> None:
    with refuses(Reason.INVALID_FIELD, match="'T' is there twice"):
        checked(topic("T"), topic("U"), topic("T"))


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
        return registration.read_registration(request(filter_servers=given)).filter_servers

    most = ["h:1"] * limits.MAX_FILTER_SERVERS
    assert registration.read_registration(request()).filter_servers is None
    assert (servers(), servers(*most)) == ((), tuple(most))
    with refuses(Reason.LIMIT_EXCEEDED):
        servers(*most, "h:1")
    with refuses(Reason.INVALID_FIELD, match=r"filter_servers\[0\]"):
        servers("h")


def test_a_heartbeat_timeout_is_taken_within_its_bounds() -> None:
    for millis in (1_000, 3_600_000):
        taken = registration.read_registration(request(heartbeat_timeout_millis=millis))
        assert taken.timeout_seconds == millis / 1000
    for millis in (-1, 0, 999, 3_600_001):
        with refuses(Reason.INVALID_FIELD, match="1000 to 3600000"):
            registration.read_registration(request(heartbeat_timeout_millis=millis))


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
        registration.read_registration(bad)
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
    assert registration.unregister_reason(route_data_pb2.REMOVAL_REASON_UNSPECIFIED).name == "UNREGISTERED"
    assert registration.unregister_reason(route_data_pb2.REMOVAL_REASON_BROKER_DOWN).name == "BROKER_DOWN"
    with refuses(Reason.INVALID_FIELD, match="reason"):
        registration.unregister_reason(route_data_pb2.REMOVAL_REASON_EXPIRED)


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
    registration.check_body_crc32(pb.RegisterBrokerRequest(topic_configs=topics, body_crc32=crc32(lines)))
    with refuses(Reason.CRC32_NOT_MATCH) as caught:
        registration.check_body_crc32(pb.RegisterBrokerRequest(topic_configs=topics, body_crc32=1))
    assert caught.value.metadata == {"stated": "1", "actual": str(crc32(lines))}


@pytest.mark.parametrize("checksum", [None, 0])
def test_an_absent_checksum_and_zero_are_not_checked(checksum: int | None) -> None:
    registration.check_body_crc32(pb.RegisterBrokerRequest(topic_configs=[topic()], body_crc32=checksum))


def test_a_mapping_is_read_with_the_topic_that_has_it() -> None:
    mapping = StaticMapping("__global__", 4, 7, False, ((0, 1), (3, 0)))
    assert checked(topic_config("Ordinary"), mapped()) == [("Ordinary", (4, 4, 6, 0)), ("T", (4, 4, 6, 0, mapping))]


def test_a_mapping_of_a_group_that_has_none_of_the_queues_now_is_read() -> None:
    empty = mapped(scope="", total=0, epoch=0, topic_ids=(), broker_ids=())
    assert checked(empty) == [("T", (4, 4, 6, 0, StaticMapping("", 0, 0, False, ())))]


def test_the_queues_of_all_mappings_together_have_a_limit() -> None:
    half = tuple(range(MAX_MAPPED_QUEUES // 2))
    one, two = (mapped(name, total=len(half), topic_ids=half, broker_ids=half) for name in ("T1", "T2"))
    assert len(checked(one, two)) == 2
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        checked(one, two, mapped("T3"))
    assert caught.value.metadata == {
        "name": "queues in mappings of one registration",
        "value": str(MAX_MAPPED_QUEUES + 2),
        "limit": str(MAX_MAPPED_QUEUES),
    }
