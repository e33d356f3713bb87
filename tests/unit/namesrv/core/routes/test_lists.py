"""Lists of topics in pages, and digests: equal exactly where the reported rows are, whatever intents are in force."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv import limits
from namesrv.app.upkeep import digest_page
from namesrv.app.worker import Worker
from namesrv.core.errors import Reason
from namesrv.core.lists import FRONT, UNIT, DigestedBroker, NamesAfter, Position, TopicLists
from namesrv.core.model import BrokerKey, DataVersion, QueueNumbers, StaticMapping
from namesrv.core.pace import FEW, ResultT
from tests.support.calls_from_nowhere import CONTEXT
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.refusals import refuses
from tests.support.yield_points import AtYieldPoint, yielding
from tests.unit.namesrv.scenarios.groups import GROUP, hold, version, wipe
from tests.unit.namesrv.servicers import table_calls

ALL = 1_000
OTHER = BrokerKey(CLUSTER, "broker-b")


class Digests:
    """A fleet, and digests of it that are kept from its beginning."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.digests = self.fleet.state.digests
        self.calls = table_calls(self.fleet)

    def all(self) -> list[DigestedBroker]:
        """The brokers with their digests, made where nothing changes in the meantime."""
        self.digests.compute(self.digests.missing(FRONT, ALL))
        page = self.digests.page(FRONT, ALL)
        assert page is not None, "a digest is missing"
        return page

    def of_groups(self) -> dict[BrokerKey, bytes]:
        return {live.broker: digest for live, digest in self.all()}

    def of_group(self, broker: BrokerKey = GROUP) -> bytes:
        return self.of_groups()[broker]

    def page(self, size: int = 0, token: str = "") -> pb.GetRouteDigestResponse:
        request = pb.GetRouteDigestRequest(page_size=size, page_token=token)
        return asyncio.run(self.calls.GetRouteDigest(request, CONTEXT))


@pytest.fixture
def made() -> Digests:
    return Digests()


def expected(rows: Mapping[str, QueueNumbers]) -> bytes:
    """The digest as the wire contract defines it, written as plainly as possible."""
    lines = [f"{name} {' '.join(map(str, rows[name]))}\n" for name in sorted(rows, key=str.encode)]
    return hashlib.sha256("".join(lines).encode()).digest()


def test_a_digest_is_over_the_lines_that_the_contract_says(made: Digests) -> None:
    rows = {"b": (4, 8, 6, 0), "B": (1, 1, 4, 2), "a.b": (0, 65_535, 7, 3), "a": (4, 4, 6, 0)}
    rows |= dict.fromkeys(("\U0001f600", "\uffee"), (1, 1, 6, 0))
    made.fleet.register(topics=rows.items())
    text = "B 1 1 4 2\na 4 4 6 0\na.b 0 65535 7 3\nb 4 8 6 0\n\uffee 1 1 6 0\n\U0001f600 1 1 6 0\n"
    assert made.of_group() == expected(rows) == hashlib.sha256(text.encode()).digest()


def test_brokers_of_one_group_share_its_digest_and_have_their_own_version(made: Digests) -> None:
    made.fleet.register(A)
    made.fleet.register(B, 1, version=version(7))
    (master, digest), (slave, of_slave) = made.all()
    assert digest == of_slave == expected({"TopicTest": (4, 4, 6, 0)})
    assert (master.broker_addr, slave.broker_addr) == (A, B)
    assert (master.data_version, slave.data_version) == (version(1), version(7))


def test_labels_are_in_the_digest_of_their_own_broker_only(made: Digests) -> None:
    made.fleet.register(topics=["T"], labels=(("rack", "r2"), ("row", "7")))
    made.fleet.register(B, 1)
    (_, of_master), (_, of_slave) = made.all()
    assert of_slave == expected({"T": (4, 4, 6, 0)})
    assert of_master == hashlib.sha256(of_slave + b"rack=r2\nrow=7\n").digest()


def test_a_digest_tells_mappings_apart_however_they_were_registered() -> None:
    numbers = (4, 4, 6, 0)
    static = StaticMapping("__global__", 4, 1, False, ((0, 0), (1, 1)))
    others: dict[str, Any] = {"scope": "s", "total_queues": 5, "epoch": 2, "is_dirty": True, "queue_ids": ((0, 1),)}
    digests = {expected({"T": numbers})}
    for mapping in (static, *(static._replace(**{name: value}) for name, value in others.items())):
        of_agent, of_rocketmq = Digests(), Digests()
        of_agent.fleet.register(topics=[("T", (*numbers, mapping))])
        of_rocketmq.fleet.register(topics=["T"], topic_by_topic=True, mappings={"T": mapping})
        assert of_agent.of_group() == of_rocketmq.of_group()
        digests.add(of_agent.of_group())
    assert len(digests) == 2 + len(others)


# Changes


NAMES = st.sampled_from(["T", "t", "T1", "T-1", "T.1", "%RETRY%T", "a|b"])
NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 7), st.integers(0, 3))
ROWS = st.dictionaries(NAMES, NUMBERS, max_size=6)


@given(first=ROWS, second=ROWS, held=NAMES, wiped=st.booleans())
def test_digests_of_two_fleets_are_equal_exactly_if_the_reported_rows_are(
    first: dict[str, QueueNumbers], second: dict[str, QueueNumbers], held: str, *, wiped: bool
) -> None:
    plain, other = Digests(), Digests()
    plain.fleet.register(A, topics=first.items())
    plain.fleet.register(B, name="broker-b", topics=second.items())
    hold(other.fleet, held)
    other.fleet.register(B, name="broker-b", topics=reversed(second.items()))
    if wiped:
        wipe(other.fleet)
    for name, numbers in reversed(first.items()):
        other.fleet.register(A, topics=[])
        other.all()
        other.fleet.register_topic(name, {GROUP: numbers})
    if not first:
        other.fleet.register(A, topics=[])
    assert plain.of_groups() == other.of_groups() == {GROUP: expected(first), OTHER: expected(second)}
    assert (plain.of_group(GROUP) == plain.of_group(OTHER)) == (first == second)


# What is kept, and for how long


def made_anew(made: Digests) -> set[BrokerKey]:
    """The groups whose digest has to be computed, and then is."""
    missing = made.digests.missing(FRONT, ALL)
    made.all()
    return set(missing)


def test_a_digest_is_made_once_and_again_only_after_a_change_of_its_group(made: Digests) -> None:
    groups = [BrokerKey(CLUSTER, f"broker-{number}") for number in range(10)]
    for number, group in enumerate(groups):
        made.fleet.register(f"10.0.0.{number}:1", name=group.broker_name, topics=("T1", "T2"))
    assert made_anew(made) == set(groups)
    assert made_anew(made) == set()
    made.fleet.register_topic("New", {groups[3]: (4, 4, 6, 0)})
    assert made_anew(made) == {groups[3]}
    hold(made.fleet, "New")
    assert made_anew(made) == {groups[3]}
    assert made_anew(made) == set()


def test_only_digests_of_a_page_are_made_for_it(made: Digests) -> None:
    for number in range(3):
        for broker_id in range(3):
            made.fleet.register(f"10.0.{number}.{broker_id}:1", broker_id, name=f"broker-{number}")
    for last, limit, names in ((0, 2, ["broker-0"]), (0, 3, ["broker-0", "broker-1"]), (2, 3, ["broker-1"])):
        position, digests = Position(CLUSTER, "broker-0", last), made.digests
        made.fleet.state.index.digests.clear()
        missing = digests.missing(position, limit)
        assert [broker.broker_name for broker in missing] == names
        digests.compute(missing)
        page = digests.page(position, limit)
        assert page is not None
        assert len(page) == limit


# Changes while digests are computed


class ReaderAmidChanges(Worker):
    """Does work at once, with a moment for changes at each of its yield points and after it."""

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__("reader")
        self._moment = moment

    async def run(self, work: Callable[[], ResultT], *_: object, **__: object) -> ResultT:
        with yielding(self._moment):
            result = work()
        self._moment()
        return result


def page_amid(made: Digests, moment: Callable[[], None]) -> list[DigestedBroker]:
    return asyncio.run(digest_page(made.digests, ReaderAmidChanges(moment), FRONT, ALL))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("topics", [("T00000", "T00063"), ("Held",)], ids=["two topics", "a held one"])
def test_a_group_that_changes_meanwhile_has_the_digest_of_after_the_change(
    made: Digests, topics: tuple[str, ...], number: int
) -> None:
    names = [f"T{number:05}" for number in range(4 * FEW)]
    hold(made.fleet, "Held")
    made.fleet.register(topics=[*names, "Held"])

    def change() -> None:
        for topic in topics:
            made.fleet.register_topic(topic, {GROUP: (8, 8, 6, 0)})

    yield_point = AtYieldPoint(number, change)
    page = page_amid(made, yield_point)
    assert yield_point.has_come
    rows = {**dict.fromkeys([*names, "Held"], (4, 4, 6, 0)), **dict.fromkeys(topics, (8, 8, 6, 0))}
    assert [digest for _, digest in page] == [expected(rows)]


@pytest.mark.parametrize("number", range(3))
def test_a_group_that_goes_while_digests_are_made_is_left_out(made: Digests, number: int) -> None:
    made.fleet.register()
    made.fleet.register(B, name="broker-b")
    yield_point = AtYieldPoint(number, made.fleet.unregister)
    page = page_amid(made, yield_point)
    assert yield_point.has_come
    assert [live.broker for live, _ in page] == [OTHER]


def test_a_group_that_never_stays_still_is_given_up_after_some_tries(made: Digests) -> None:
    made.fleet.register()
    numbers = itertools.count(5)

    def change() -> None:
        made.fleet.register_topic("TopicTest", {GROUP: (next(numbers), 4, 6, 0)})

    with refuses(Reason.OVERLOADED, match="changes all the time"):
        page_amid(made, change)
    assert made.of_group() == expected({"TopicTest": (next(numbers) - 1, 4, 6, 0)})


# Pages of the call.


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
    for cluster, name, broker_id in (("c2", "a", 0), ("c1", "b", 1), ("c1", "a", 2), ("c1", "b", 0), ("c1", "a", 10)):
        made.fleet.register(f"{cluster}{name}:{1 + broker_id}", broker_id, name=name, cluster=cluster)
    in_order = [("c1", "a", 2), ("c1", "a", 10), ("c1", "b", 0), ("c1", "b", 1), ("c2", "a", 0)]

    def positions(answer: pb.GetRouteDigestResponse) -> list[tuple[str, str, int]]:
        return [(row.cluster_name, row.broker_name, row.broker_id) for row in answer.brokers]

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


# Lists of topics: what is in them, and what changes while they are read.

C = "127.0.0.1:30911"


@pytest.fixture
def lists(fleet: Fleet) -> TopicLists:
    return fleet.state.topic_lists


def whole(names_after: NamesAfter, page_size: int = 2) -> list[str]:
    """All pages of a list."""
    names: list[str] = []
    while page := names_after(names[-1] if names else "", page_size):
        assert len(page) <= page_size
        names += page
    return names


def flagged(name: str, flag: int) -> tuple[str, tuple[int, int, int, int]]:
    return name, (4, 4, 6, flag)


def test_an_unknown_cluster_has_no_topics(fleet: Fleet, lists: TopicLists) -> None:
    assert whole(lists.of_cluster("c1")) == []
    fleet.register(cluster="c1")
    assert whole(lists.of_cluster("c2")) == []


def test_the_broker_that_knows_more_system_topics_is_the_lowest_of_the_first_group(
    fleet: Fleet, lists: TopicLists
) -> None:
    assert lists.broker_addr() is None
    fleet.register(B, 1, name="broker-b")
    fleet.register(C, 0, name="broker-a")
    assert lists.broker_addr() == B
    fleet.register(A, 0, name="broker-b")
    assert lists.broker_addr() == A


def test_a_filter_passes_over_topics_that_go_while_it_is_read(fleet: Fleet, lists: TopicLists) -> None:
    names = [f"{number:05}" for number in range(2 * FEW)]
    fleet.register(A, topics=[flagged(name, UNIT) for name in names])
    fleet.register(B, topics=[flagged(names[0], UNIT)], name="broker-b")
    lists.names().get()  # sorts the names, so that the first yield point is one of the filter
    read, yield_point = lists.with_flags(UNIT, 0), AtYieldPoint(0, lambda: fleet.unregister(A))
    with yielding(yield_point):
        assert read("", len(names)) == names[:FEW]
    assert yield_point.has_come
    assert whole(lists.with_flags(UNIT, 0)) == names[:1]


def test_a_list_is_of_the_topics_of_its_moment(fleet: Fleet, lists: TopicLists) -> None:
    fleet.register(topics=["b", "c"])
    taken = [lists.all(), lists.with_flags(0, UNIT), lists.of_cluster(CLUSTER)]
    fleet.register_topic("a", {BrokerKey(CLUSTER, "broker-a"): (4, 4, 6, 0)})
    assert [whole(names_after) for names_after in taken] == [["b", "c"]] * 3
    assert whole(lists.all()) == ["a", "b", "c"]
