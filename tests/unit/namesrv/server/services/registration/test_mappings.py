"""The mappings of static topics in a registration: what is taken, and what is refused with field and limit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from namesrv_api.v1 import route_data_pb2

from namesrv.core.errors import Reason
from namesrv.core.model import ReportedQueues, StaticMapping
from namesrv.grpc_api import registration
from namesrv_common.topic_names import MAX_MAPPED_QUEUES
from tests.support.refusals import refuses
from tests.support.registrations import topic_config


@dataclass(frozen=True)
class Said:
    """A mapping as an agent says it; a good one unless said otherwise."""

    scope: str = "__global__"
    total: int = 4
    epoch: int = 7
    topic_ids: tuple[int, ...] = (0, 3)
    broker_ids: tuple[int, ...] = (1, 0)

    def topic(self, name: str = "T") -> route_data_pb2.TopicConfig:
        message = topic_config(name)
        message.mapping.scope, message.mapping.total_queue_nums = self.scope, self.total
        message.mapping.epoch = self.epoch
        message.mapping.topic_queue_ids.extend(self.topic_ids)
        message.mapping.broker_queue_ids.extend(self.broker_ids)
        return message


GOOD = Said()


def read(*topics: route_data_pb2.TopicConfig) -> dict[str, ReportedQueues]:
    return registration.read_topics(topics, ())


def test_a_mapping_is_read_with_the_topic_that_has_it() -> None:
    mapping = StaticMapping("__global__", 4, 7, False, ((0, 1), (3, 0)))
    assert read(topic_config("Ordinary"), GOOD.topic()) == {"Ordinary": (4, 4, 6, 0), "T": (4, 4, 6, 0, mapping)}


def test_a_mapping_of_a_group_that_has_none_of_the_queues_now_is_read() -> None:
    assert read(Said("", 0, 0, (), ()).topic()) == {"T": (4, 4, 6, 0, StaticMapping("", 0, 0, False, ()))}


@pytest.mark.parametrize(
    ("said", "field", "problem"),
    [
        (replace(GOOD, scope="a\tb"), "scope", "has characters that are not printable"),
        (replace(GOOD, scope="\x1b[2J"), "scope", "has characters that are not printable"),
        (replace(GOOD, scope="x" * 256), "scope", "has 256 bytes, at most 255"),
        (replace(GOOD, total=-1), "total_queue_nums", "is -1 for 'T', must not be negative"),
        (replace(GOOD, epoch=-1), "epoch", "is -1 for 'T', must not be negative"),
        (replace(GOOD, broker_ids=(1,)), "broker_queue_ids", "has 1 queues for 'T', must have 2"),
        (replace(GOOD, topic_ids=()), "broker_queue_ids", "has 2 queues for 'T', must have 0"),
        (replace(GOOD, topic_ids=(0, 4)), "topic_queue_ids", "has 4 for 'T', must be 0 to 3, total_queue_nums - 1"),
        (replace(GOOD, topic_ids=(-1, 0)), "topic_queue_ids", "has -1 for 'T', must be 0 to 3"),
        (replace(GOOD, topic_ids=(3, 0)), "topic_queue_ids", "has 0 after 3 for 'T', must ascend"),
        (replace(GOOD, topic_ids=(3, 3)), "topic_queue_ids", "has 3 after 3 for 'T', must ascend"),
        (replace(GOOD, broker_ids=(0, 65_535)), "broker_queue_ids", "has 65535 for 'T', must be 0 to 65534"),
        (replace(GOOD, broker_ids=(-1, 0)), "broker_queue_ids", "has -1 for 'T', must be 0 to 65534"),
    ],
)
def test_a_bad_mapping_names_its_place_field_and_rule(said: Said, field: str, problem: str) -> None:
    with refuses(Reason.INVALID_FIELD) as caught:
        read(topic_config("first"), said.topic())
    assert caught.value.violations[0].field == f"topic_configs[1].mapping.{field}"
    assert problem in caught.value.violations[0].description


def test_the_queues_of_all_mappings_together_have_a_limit() -> None:
    half = tuple(range(MAX_MAPPED_QUEUES // 2))
    whole = replace(GOOD, total=len(half), topic_ids=half, broker_ids=half)
    assert set(read(whole.topic("T1"), whole.topic("T2"))) == {"T1", "T2"}
    with refuses(Reason.LIMIT_EXCEEDED) as caught:
        read(whole.topic("T1"), whole.topic("T2"), GOOD.topic("T3"))
    assert caught.value.metadata == {
        "name": "queues in mappings of one registration",
        "value": str(MAX_MAPPED_QUEUES + 2),
        "limit": str(MAX_MAPPED_QUEUES),
    }
