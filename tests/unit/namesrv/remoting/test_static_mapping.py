"""The queues of static topics' mappings: tens of thousands are read with yield points, whatever their form."""

from __future__ import annotations

import json

import pytest

from namesrv.core.errors import Reason
from namesrv.core.pace import FEW
from namesrv_common.topic_names import MAX_MAPPED_QUEUES, MAX_QUEUE_NUMS
from tests.support.refusals import refuses
from tests.support.yield_points import yield_points_of
from tests.unit.namesrv.remoting.bodies import body, read, topic


def mapped(queues: str) -> bytes:
    """A body whose topic TS has these queues, as they are written, and whose topic T follows."""
    text = json.dumps(body({"T": topic("T")}, topicQueueMappingInfoMap={"TS": {"currIdMap": "HERE", "totalQueues": 9}}))
    return text.replace('"HERE"', queues).encode()


@pytest.mark.parametrize("form", ["%d:%d", '"%d":%d'])
@pytest.mark.parametrize("order", [1, -1])
def test_a_mapping_of_tens_of_thousands_of_queues_is_read_with_yield_points(form: str, order: int) -> None:
    ids = [(queue, queue + 1) for queue in range(20_000)]
    data = mapped("{" + ",".join(form % one for one in ids[::order]) + "}")
    assert read(data).mappings["TS"].queue_ids == tuple(ids)
    assert yield_points_of(lambda: read(data)) >= 20_000 // FEW


@pytest.mark.parametrize("odd", ["-1", "9999999999", '"x"', "[1]", "{2:3}"])
@pytest.mark.parametrize("before", ["0:0,", ""])
def test_an_odd_queue_among_others_has_its_mapping_passed_over(odd: str, before: str) -> None:
    found = read(mapped(f"{{{before}1:{odd},2:2,3:3}}"))
    assert (found.topic_configs, found.mappings, found.skipped) == ({"T": (4, 4, 6, 0)}, {}, 1)


@pytest.mark.parametrize("queues", ["{0:0,1:1", '{0:0,"1:1}', '{0:0,1":1}', "{0:0,1:01}", "{0:0,,1:1}"])
def test_queues_that_are_no_json_refuse_the_body(queues: str) -> None:
    with refuses(Reason.INVALID_FIELD):
        read(mapped(queues))


def test_of_a_queue_that_is_there_twice_the_last_counts() -> None:
    assert read(mapped("{0:0,1:1,1:5,0:4}")).mappings["TS"].queue_ids == ((0, 4), (1, 5))


def test_a_mapping_of_more_queues_than_a_topic_may_have_is_passed_over_and_of_many_more_refuses_the_body() -> None:
    def queues(count: int) -> str:
        return "{" + ",".join(f"{queue}:0" for queue in range(count)) + "}"

    assert read(mapped(queues(MAX_QUEUE_NUMS))).skipped == 0
    assert read(mapped(queues(MAX_QUEUE_NUMS + 1))).skipped == 1
    with refuses(Reason.LIMIT_EXCEEDED):
        read(mapped(queues(MAX_MAPPED_QUEUES + 1)))
