"""Digests of what brokers report: equal exactly where the reported rows are, whatever operators decided."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.errors import InvalidField, Overloaded
from namesrv.core.records.changes import Cause
from namesrv.core.records.intents import HoldKey, Intent, IntentKey, IntentKind
from namesrv.core.records.rows import BrokerKey, DataVersion, QueueNumbers
from namesrv.core.routes.digests import FRONT, MAX_TRIES, SLICE, DigestedBroker, Position, RouteDigests
from namesrv.core.slices import run_sync
from namesrv.server.rpc.handlers import Context
from namesrv.server.services.paging import page_token
from namesrv.server.services.route.digests import DigestCalls
from support.core_fleet import CLUSTER, A, B, Fleet

CONTEXT = cast("Context", None)
"""The call does not ask for it."""
CAUSE = Cause("test", "an operator", "because")
GROUP = BrokerKey(CLUSTER, "broker-a")
OTHER = BrokerKey(CLUSTER, "broker-b")
C = "127.0.0.1:30911"
ALL = 1_000


class Digests:
    """A fleet, and digests of it that are kept from its beginning."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.digests = RouteDigests(self.fleet.manager.tables, self.fleet.manager.change_log)
        self.calls = DigestCalls(self.fleet.manager)

    def all(self) -> list[DigestedBroker]:
        return run_sync(self.digests.after(FRONT, ALL))

    def of_groups(self) -> dict[BrokerKey, bytes]:
        return {live.broker: digest for live, digest in self.all()}

    def of_group(self, broker: BrokerKey = GROUP) -> bytes:
        return self.of_groups()[broker]

    def page(self, size: int = 0, token: str = "") -> pb.GetRouteDigestResponse:
        request = pb.GetRouteDigestRequest(page_size=size, page_token=token)
        return asyncio.run(self.calls.GetRouteDigest(request, CONTEXT))

    def decide(self, kind: IntentKind, key: IntentKey) -> None:
        manager = self.fleet.manager
        intent = Intent(kind, key, "an operator", self.fleet.clock.wall_millis())
        run_sync(manager.publish_intents(manager.intents.with_intent(intent), CAUSE))

    def lift(self, key: IntentKey) -> None:
        manager = self.fleet.manager
        run_sync(manager.publish_intents(manager.intents.without([key]), CAUSE))


@pytest.fixture
def made() -> Digests:
    return Digests()


def expected(rows: Mapping[str, QueueNumbers]) -> bytes:
    """The digest as the wire contract defines it, written as plainly as possible."""
    lines = [f"{name} {' '.join(map(str, rows[name]))}\n" for name in sorted(rows, key=str.encode)]
    return hashlib.sha256("".join(lines).encode()).digest()


def version(counter: int) -> DataVersion:
    return DataVersion(1_000, counter)


def test_a_digest_is_over_the_lines_that_the_contract_says(made: Digests) -> None:
    rows = {"b": (4, 8, 6, 0), "B": (1, 1, 4, 2), "a.b": (0, 65_535, 7, 3), "a": (4, 4, 6, 0)}
    made.fleet.register(topics=rows.items())
    text = b"B 1 1 4 2\na 4 4 6 0\na.b 0 65535 7 3\nb 4 8 6 0\n"
    assert made.of_group() == expected(rows) == hashlib.sha256(text).digest()


def test_names_beyond_ascii_are_sorted_by_their_utf8_bytes(made: Digests) -> None:
    rows = dict.fromkeys(("\U0001f600", "\uffee", "z", "é"), (4, 4, 6, 0))
    made.fleet.register(topics=rows.items())
    assert made.of_group() == expected(rows)


def test_a_group_without_topics_has_the_digest_of_nothing(made: Digests) -> None:
    made.fleet.register(B, 1)
    assert made.of_group() == hashlib.sha256(b"").digest()


def test_brokers_of_one_group_share_its_digest_and_have_their_own_version(made: Digests) -> None:
    made.fleet.register(A)
    made.fleet.register(B, 1, version=version(7))
    (master, digest), (slave, of_slave) = made.all()
    assert digest == of_slave == expected({"TopicTest": (4, 4, 6, 0)})
    assert (master.broker_addr, slave.broker_addr) == (A, B)
    assert (master.data_version, slave.data_version) == (version(1), version(7))


def test_groups_of_one_topic_do_not_show_in_one_anothers_digest(made: Digests) -> None:
    groups = {f"broker-{number:02}": (number, number, 6, 0) for number in range(40)}
    for number, (name, numbers) in enumerate(groups.items()):
        made.fleet.register(f"10.0.0.{number}:10911", topics=[("TopicTest", numbers)], name=name)
    assert made.of_groups() == {
        BrokerKey(CLUSTER, name): expected({"TopicTest": numbers}) for name, numbers in groups.items()
    }


# Changes


@pytest.mark.parametrize("index", range(4))
def test_each_number_of_a_topic_changes_the_digest(made: Digests, index: int) -> None:
    numbers = [4, 4, 6, 0]
    made.fleet.register(topics=[("TopicTest", (4, 4, 6, 0))])
    before = made.of_group()
    numbers[index] += 1
    after = (numbers[0], numbers[1], numbers[2], numbers[3])
    made.fleet.register(topics=[("TopicTest", after)], version=version(2))
    assert made.of_group() == expected({"TopicTest": after}) != before


def test_a_topic_that_comes_and_a_group_that_comes_back_are_in_the_digest(made: Digests) -> None:
    made.fleet.register(topics=["One"])
    made.of_group()
    made.fleet.register_topic("Two", {GROUP: (1, 2, 6, 0)})
    assert made.of_group() == expected({"One": (4, 4, 6, 0), "Two": (1, 2, 6, 0)})
    made.fleet.unregister()
    assert made.all() == []
    made.fleet.register(topics=["Three"])
    assert made.of_group() == expected({"Three": (4, 4, 6, 0)})


def test_a_wipe_and_a_grant_of_write_permission_change_nothing(made: Digests) -> None:
    made.fleet.register(topics=["One", "Two"])
    before = made.of_group()
    made.decide(IntentKind.WIPE_WRITE_PERM, GROUP)
    assert made.of_group() == before
    made.decide(IntentKind.ADD_WRITE_PERM, GROUP)
    assert made.of_group() == before
    made.fleet.register(B, name="broker-b", topics=["One", "Two"])
    assert made.of_group(OTHER) == before


def test_a_hold_and_its_release_change_nothing(made: Digests) -> None:
    made.fleet.register(topics=["One", "Two"])
    before = made.of_group()
    made.decide(IntentKind.TOPIC_HOLD, HoldKey("One", None))
    assert made.fleet.topics == {"Two"}
    assert made.of_group() == before
    made.lift(HoldKey("One", None))
    assert made.fleet.topics == {"One", "Two"}
    assert made.of_group() == before


def test_what_is_reported_of_a_held_topic_shows_though_it_is_no_change_of_the_routes(made: Digests) -> None:
    made.decide(IntentKind.TOPIC_HOLD, HoldKey("Held", None))
    made.fleet.register(topics=[("Held", (4, 4, 6, 0)), ("One", (4, 4, 6, 0))])
    assert made.of_group() == expected({"Held": (4, 4, 6, 0), "One": (4, 4, 6, 0)})
    revision = made.fleet.manager.revision
    made.fleet.register_topic("Held", {GROUP: (8, 8, 6, 0)})
    assert made.fleet.manager.revision == revision
    assert made.of_group() == expected({"Held": (8, 8, 6, 0), "One": (4, 4, 6, 0)})


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
    other.decide(IntentKind.TOPIC_HOLD, HoldKey(held, None))
    other.fleet.register(B, name="broker-b", topics=reversed(second.items()))
    if wiped:
        other.decide(IntentKind.WIPE_WRITE_PERM, GROUP)
    for name, numbers in reversed(first.items()):
        other.fleet.register(A, topics=[])
        other.all()
        other.fleet.register_topic(name, {GROUP: numbers})
    if not first:
        other.fleet.register(A, topics=[])
    assert plain.of_groups() == other.of_groups() == {GROUP: expected(first), OTHER: expected(second)}
    assert (plain.of_group(GROUP) == plain.of_group(OTHER)) == (first == second)


# What is kept, and for how long


def steps_taken(made: Digests) -> int:
    return sum(1 for _ in made.digests.after(FRONT, ALL))


def test_a_digest_is_made_once_and_again_only_after_a_change_of_its_group(made: Digests) -> None:
    for number in range(10):
        made.fleet.register(f"10.0.0.{number}:1", name=f"broker-{number}", topics=[f"T{n}" for n in range(400)])
    assert steps_taken(made) == 10
    assert steps_taken(made) == 0
    made.fleet.register_topic("New", {BrokerKey(CLUSTER, "broker-3"): (4, 4, 6, 0)})
    assert steps_taken(made) == 1
    made.decide(IntentKind.TOPIC_HOLD, HoldKey("New", None))
    assert steps_taken(made) == 1
    assert steps_taken(made) == 0


def test_no_more_digests_are_kept_than_there_are_groups(made: Digests) -> None:
    for number in range(5):
        made.fleet.register(name=f"broker-{number}")
        made.all()
    assert [live.broker.broker_name for live, _ in made.all()] == ["broker-4"]
    assert len(made.digests._entries) == 1


def test_digests_give_way_within_a_large_group_and_between_groups(made: Digests) -> None:
    made.fleet.register(topics=[f"T{number}" for number in range(10 * SLICE)])
    made.fleet.register(B, name="broker-b")
    assert steps_taken(made) >= 11
    for number in range(2 * SLICE):  # even where all digests are kept already
        made.fleet.register(f"10.0.{number // 250}.{number % 250}:1", name=f"c-{number}", topics=[])
    run_sync(made.digests.after(FRONT, 3 * SLICE))
    assert sum(1 for _ in made.digests.after(FRONT, 3 * SLICE)) >= 10


def test_a_group_that_changes_while_its_digest_is_made_has_the_digest_of_after_the_change(made: Digests) -> None:
    names = [f"T{number:05}" for number in range(2 * SLICE)]
    made.fleet.register(topics=names)
    steps = made.digests.after(FRONT, ALL)
    next(steps)
    made.fleet.register_topic(names[0], {GROUP: (1, 1, 6, 0)})  # has been read already
    made.fleet.register_topic(names[-1], {GROUP: (2, 2, 6, 0)})  # has not
    rows = {**dict.fromkeys(names, (4, 4, 6, 0)), names[0]: (1, 1, 6, 0), names[-1]: (2, 2, 6, 0)}
    assert [digest for _, digest in run_sync(steps)] == [expected(rows)]


def test_a_report_of_a_held_topic_while_the_digest_is_made_is_in_it(made: Digests) -> None:
    made.decide(IntentKind.TOPIC_HOLD, HoldKey("A", None))
    rows = {"A": (4, 4, 6, 0), "B": (4, 4, 6, 0)}
    made.fleet.register(topics=rows.items())
    steps = made.digests.after(FRONT, ALL)
    next(steps)
    made.fleet.register_topic("A", {GROUP: (8, 8, 6, 0)})
    assert [digest for _, digest in run_sync(steps)] == [expected({**rows, "A": (8, 8, 6, 0)})]


def test_a_group_that_goes_while_its_digest_is_made_is_left_out(made: Digests) -> None:
    made.fleet.register()
    made.fleet.register(B, name="broker-b")
    steps = made.digests.after(FRONT, ALL)
    next(steps)
    made.fleet.unregister()
    assert [live.broker for live, _ in run_sync(steps)] == [OTHER]


def test_two_readers_at_once_get_the_same_digest_though_the_group_changes_under_both(made: Digests) -> None:
    names = [f"T{number:05}" for number in range(2 * SLICE)]
    made.fleet.register(topics=names)
    first, second = made.digests.after(FRONT, ALL), made.digests.after(FRONT, ALL)
    next(first)
    next(second)
    made.fleet.register_topic(names[0], {GROUP: (1, 1, 6, 0)})
    rows = {**dict.fromkeys(names, (4, 4, 6, 0)), names[0]: (1, 1, 6, 0)}
    assert run_sync(first) == run_sync(second)
    assert made.of_group() == expected(rows)


def test_a_group_that_never_stays_still_is_given_up_after_some_tries(made: Digests) -> None:
    made.fleet.register()
    tries = 0

    def change_at_each_step() -> None:
        nonlocal tries
        for tries, _ in enumerate(made.digests.after(FRONT, ALL), 1):
            made.fleet.register_topic("TopicTest", {GROUP: (tries, 4, 6, 0)})

    with pytest.raises(Overloaded, match="broker-a"):
        change_at_each_step()
    assert tries == MAX_TRIES
    assert made.of_group() == expected({"TopicTest": (MAX_TRIES, 4, 6, 0)})


# Pages


def fill(fleet: Fleet) -> list[Position]:
    """Five brokers in two clusters, registered in no order."""
    for cluster, name, broker_id in (
        ("c2", "a", 0),
        ("c1", "b", 1),
        ("c1", "a", 2),
        ("c1", "b", 0),
        ("c1", "a", 10),
    ):
        fleet.register(f"{cluster}{name}:{1 + broker_id}", broker_id, name=name, cluster=cluster)
    in_order = [("c1", "a", 2), ("c1", "a", 10), ("c1", "b", 0), ("c1", "b", 1), ("c2", "a", 0)]
    return [Position(*position) for position in in_order]


def positions(answer: pb.GetRouteDigestResponse) -> list[Position]:
    return [Position(row.cluster_name, row.broker_name, row.broker_id) for row in answer.brokers]


def test_a_row_says_who_the_broker_is_and_which_version_it_has(made: Digests) -> None:
    made.fleet.register(version=DataVersion(1, 2, 3))
    answer = made.page()
    assert answer.header == made.fleet.manager.header()
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


@pytest.mark.parametrize("size", range(1, 7))
def test_pages_of_any_size_have_each_broker_once_by_cluster_name_and_id(made: Digests, size: int) -> None:
    in_order = fill(made.fleet)
    seen, token = [], ""
    while True:
        answer = made.page(size, token)
        assert len(answer.brokers) <= size
        seen += positions(answer)
        token = answer.next_page_token
        if not token:
            break
        assert len(answer.brokers) == size
    assert seen == in_order


def test_a_page_token_survives_that_its_broker_its_group_and_its_cluster_go(made: Digests) -> None:
    in_order = fill(made.fleet)
    token = made.page(2).next_page_token
    for broker_id in (2, 10):
        made.fleet.unregister(f"c1a:{1 + broker_id}", name="a", cluster="c1")
    assert positions(made.page(0, token)) == in_order[2:]
    for broker_id in (0, 1):
        made.fleet.unregister(f"c1b:{1 + broker_id}", name="b", cluster="c1")
    assert positions(made.page(0, token)) == in_order[4:]


def test_a_page_has_a_thousand_brokers_by_default_and_never_more_than_the_limit(made: Digests) -> None:
    for number in range(limits.MAX_DIGEST_PAGE_SIZE + 1):
        made.fleet.register(f"10.0.{number // 250}.{number % 250}:1", number, name=f"b-{number // 10}", topics=[])
    assert len(made.page().brokers) == 1_000
    largest = made.page(limits.MAX_DIGEST_PAGE_SIZE + 1)
    assert len(largest.brokers) == limits.MAX_DIGEST_PAGE_SIZE
    assert len(made.page(0, largest.next_page_token).brokers) == 1


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


@pytest.mark.parametrize(
    "token",
    [
        "!",
        page_token("c1"),
        page_token("c1\na"),
        page_token("c1\na\n"),
        page_token("c1\na\n-1"),
        page_token("c1\na\n1\n2"),
        page_token("\na\n1"),
        page_token("c1\n\n1"),
        page_token(f"c1\na\n{10**19}"),
    ],
)
def test_a_token_that_is_none_of_ours_is_refused(made: Digests, token: str) -> None:
    with pytest.raises(InvalidField, match=r"^page_token: "):
        made.page(0, token)


def test_a_negative_page_size_is_refused(made: Digests) -> None:
    with pytest.raises(InvalidField, match=r"^page_size: "):
        made.page(-1)
