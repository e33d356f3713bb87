"""Page tokens: each is of one call with its parameters."""

from __future__ import annotations

import string
from typing import NamedTuple

import pytest
from namesrv_api.v1 import admin_service_pb2, route_service_pb2

from namesrv.core.errors import Reason
from namesrv.grpc_api.paging import AsksForPage, Name, paged, token_after
from tests.support.refusals import refuses

ListTopics = route_service_pb2.ListTopicsRequest
ListAuditEntries = admin_service_pb2.ListAuditEntriesRequest
START = Name("")
NAME = "Bestellungen-ü"


def position_of(request: AsksForPage) -> str:
    return paged(request, START).after.name


def test_a_token_goes_on_after_its_position() -> None:
    assert position_of(ListTopics(page_token=token_after(ListTopics(), Name(NAME)))) == NAME
    assert position_of(ListTopics()) == ""


def test_pages_have_a_thousand_rows_by_default_and_never_more_than_allowed() -> None:
    assert [paged(ListTopics(page_size=size), START).size for size in (0, 1, 10_000, 10_001)] == [
        1_000,
        1,
        10_000,
        10_000,
    ]
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


def test_a_token_has_only_characters_of_base64url() -> None:
    token = token_after(ListTopics(), Name("\xff" * 300))
    assert set(token) <= set(string.ascii_letters + string.digits + "-_=")


def test_the_page_size_may_change_between_pages() -> None:
    token = token_after(ListTopics(page_size=10), Name(NAME))
    assert position_of(ListTopics(page_size=20, page_token=token)) == NAME


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ListTopics(), ListTopics(cluster_name="c")),
        (ListTopics(cluster_name="c"), ListTopics(cluster_name="d")),
        (ListTopics(), ListTopics(filter=route_service_pb2.TOPIC_FILTER_UNIT)),
        (ListTopics(), ListAuditEntries()),
        (ListAuditEntries(topic="T"), ListAuditEntries()),
    ],
)
def test_a_token_of_another_call_or_of_other_parameters_is_refused(first: AsksForPage, then: AsksForPage) -> None:
    then.page_token = token_after(first, Name(NAME))
    with refuses(
        Reason.INVALID_FIELD, match=r"^page_token: is not a next_page_token of this call with these parameters"
    ):
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
