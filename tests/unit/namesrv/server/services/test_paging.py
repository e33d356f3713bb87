"""Page tokens: each is of one call with its parameters. Pages of digests are whole whatever changes between them."""

from __future__ import annotations

import string
from typing import NamedTuple

import pytest
from namesrv_api.v1 import admin_service_pb2, route_data_pb2, route_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.core.digests import Position
from namesrv.core.errors import Reason
from namesrv.core.model import DataVersion
from namesrv.grpc_api.paging import AsksForPage, Name, paged, token_after
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.refusals import refuses
from tests.unit.namesrv.worlds.fleet_digests import Digests, expected, made

ListTopics = route_service_pb2.ListTopicsRequest
ListAuditEntries = admin_service_pb2.ListAuditEntriesRequest
START = Name("")
NAME = "Bestellungen-\xff\xff\xfe"


def position_of(request: AsksForPage) -> str:
    return paged(request, START).after.name


def test_a_token_goes_on_after_its_position_whatever_the_page_size() -> None:
    token = token_after(ListTopics(page_size=10), Name(NAME))
    assert set(token) <= set(string.ascii_letters + string.digits + "-_=")
    assert position_of(ListTopics(page_size=20, page_token=token)) == NAME
    assert position_of(ListTopics()) == ""


def test_pages_have_a_thousand_rows_by_default_and_never_more_than_allowed() -> None:
    expected = [1_000, 1, 10_000, 10_000]
    assert [paged(ListTopics(page_size=size), START).size for size in (0, 1, 10_000, 10_001)] == expected
    assert [paged(ListTopics(page_size=size), START, most=9, default=5).size for size in (0, 9, 10)] == [5, 9, 9]
    with refuses(Reason.INVALID_FIELD, match="^page_size: is -1, must not be negative$"):
        paged(ListTopics(page_size=-1), START)


@pytest.mark.parametrize("fitting", [2, 3])
def test_only_a_page_that_leaves_rows_out_has_a_token(fitting: int) -> None:
    asked = paged(ListTopics(page_size=3), START)
    page, token = asked.cut(["a", "b", "c", "d"], Name, fitting)
    assert page == ["a", "b", "c"][:fitting]
    assert position_of(ListTopics(page_token=token)) == page[-1]
    assert asked.cut(["a", "b", "c"], Name) == (["a", "b", "c"], "")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ListTopics(), ListTopics(cluster_name="c")),
        (ListTopics(), ListAuditEntries()),
    ],
)
def test_a_token_of_another_call_or_of_other_parameters_is_refused(first: AsksForPage, then: AsksForPage) -> None:
    then.page_token = token_after(first, Name(NAME))
    with refuses(Reason.INVALID_FIELD, match=r"^page_token: is not a next_page_token of this call with these"):
        position_of(then)


class Entry(NamedTuple):
    """A position of a text and a number, as those of most calls are."""

    name: str
    number: int


@pytest.mark.parametrize("text", ["e", "e\n-1", "e\n1.0", "e\n٣", "e\n1 ", "e\n1\n2", "\n1", f"e\n{2**63}"])
def test_a_token_without_a_position_after_the_first_is_refused(text: str) -> None:
    request = ListTopics(page_token=token_after(ListTopics(), (text,)))
    with refuses(Reason.INVALID_FIELD, match=r"^page_token: "):
        paged(request, Entry("", -1))


@pytest.mark.parametrize("token", ["!", "eA==", "VG9waWNUZXN0", "ü", token_after(ListTopics(), Name(""))])
def test_a_token_that_no_answer_had_is_refused(token: str) -> None:
    with refuses(Reason.INVALID_FIELD, match=r"^page_token: "):
        position_of(ListTopics(page_token=token))


__all__ = ["made"]  # pytest finds the fixture by its name in this module


def fill(fleet: Fleet) -> list[Position]:
    """Five brokers in two clusters, registered in no order."""
    for cluster, name, broker_id in (("c2", "a", 0), ("c1", "b", 1), ("c1", "a", 2), ("c1", "b", 0), ("c1", "a", 10)):
        fleet.register(f"{cluster}{name}:{1 + broker_id}", broker_id, name=name, cluster=cluster)
    in_order = [("c1", "a", 2), ("c1", "a", 10), ("c1", "b", 0), ("c1", "b", 1), ("c2", "a", 0)]
    return [Position(*position) for position in in_order]


def positions(answer: pb.GetRouteDigestResponse) -> list[Position]:
    return [Position(row.cluster_name, row.broker_name, row.broker_id) for row in answer.brokers]


def test_a_row_says_who_the_broker_is_and_which_version_it_has(made: Digests) -> None:
    made.fleet.register(version=DataVersion(1, 2, 3))
    answer = made.page()
    assert answer.header == made.fleet.state.header()
    assert list(answer.brokers) == [
        pb.BrokerDigest(
            cluster_name=CLUSTER,
            broker_name="broker-a",
            broker_id=0,
            broker_addr=A,
            data_version=route_data_pb2.DataVersion(timestamp_millis=1, counter=2, state_version=3),
            digest=expected({"TopicTest": (4, 4, 6, 0)}),
        )
    ]


def test_a_page_token_survives_that_its_broker_its_group_and_its_cluster_go(
    made: Digests, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order = fill(made.fleet)
    assert (positions(made.page()), made.page().next_page_token) == (in_order, "")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_DIGEST_PAGE_SIZE", 2)
        first = made.page(3)
    assert positions(first) == in_order[:2]
    token = first.next_page_token
    for broker_id in (2, 10):
        made.fleet.unregister(f"c1a:{1 + broker_id}", name="a", cluster="c1")
    assert positions(made.page(0, token)) == in_order[2:]
    for broker_id in (0, 1):
        made.fleet.unregister(f"c1b:{1 + broker_id}", name="b", cluster="c1")
    assert positions(made.page(0, token)) == in_order[4:]


def test_a_page_of_the_longest_names_is_below_what_clients_take() -> None:
    row = pb.BrokerDigest(
        cluster_name="c" * 127,
        broker_name="b" * 127,
        broker_id=2**63 - 1,
        broker_addr="a" * 260,
        data_version=route_data_pb2.DataVersion(timestamp_millis=2**63 - 1, counter=2**63 - 1, state_version=2**63 - 1),
        digest=b"d" * 32,
    )
    answer = pb.GetRouteDigestResponse(brokers=[row] * limits.MAX_DIGEST_PAGE_SIZE)
    assert answer.ByteSize() < 4 * 1024 * 1024
