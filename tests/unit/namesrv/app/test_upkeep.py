"""Background work: when brokers are scanned, samples of digests, and symptoms as metrics have them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from namesrv.app import upkeep
from namesrv.app.channels import StallDetector
from namesrv.app.upkeep import DigestSamples, SymptomCounter, Symptoms, scan_for_silent_brokers
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.model import BrokerKey, Intent, IntentKind, IntentTable, KvConfigTable
from tests.support.core_fleet import CLUSTER, A, B, Fleet
from tests.support.patience import TIMEOUT
from tests.unit.namesrv.scenarios.groups import delete_topic, wipe
from tests.unit.namesrv.servicers import channel_streams


async def test_the_first_scan_does_not_wait_for_the_interval(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FIRST_SCAN_SECONDS", 0.01)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    scanned = asyncio.Event()
    monkeypatch.setattr(StallDetector, "check", lambda _: scanned.set())

    writer = TableWriter()
    detector = StallDetector(fleet.clock.monotonic, fleet.state.grant_more_time, 10.0)
    channels = channel_streams(fleet, writer)
    scanning = asyncio.create_task(scan_for_silent_brokers(fleet.state, writer, channels, detector, lambda: 3_600.0))
    async with asyncio.timeout(TIMEOUT):
        await scanned.wait()
    scanning.cancel()


async def test_a_channel_of_a_silent_broker_is_closed_unless_it_has_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "FIRST_SCAN_SECONDS", 0.0)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.01)
    writer, closed = TableWriter(), asyncio.Queue[str]()
    channels = channel_streams(fleet, writer)
    shared, alone = (channels.connect(name, partial(closed.put_nowait, name)) for name in ("shared", "alone"))
    for addr, channel_id in ((A, shared), (B, shared), ("127.0.0.1:30911", alone)):
        fleet.register(addr, name=f"broker-{addr}", channel_id=channel_id)
    fleet.clock.advance(100.0)
    fleet.query(B, name=f"broker-{B}")
    fleet.clock.advance(20.001)
    detector = StallDetector(fleet.clock.monotonic, fleet.state.grant_more_time, 10.0)
    scanning = asyncio.create_task(scan_for_silent_brokers(fleet.state, writer, channels, detector, lambda: 3_600.0))
    async with asyncio.timeout(TIMEOUT):
        assert await closed.get() == "alone"
    scanning.cancel()
    assert [key.broker_addr for key in fleet.state.tables.broker_live_table] == [B]


FULL_MINUTE_MILLIS = 1_795_392_000_000
"""Of minute 0."""


class Sampled:
    """A name server of its own, with its samples."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.now_millis = FULL_MINUTE_MILLIS
        self.settings = {"orderMessageEnable": "false"}
        self.samples = DigestSamples(self.fleet.state, Worker("reader"), lambda: self.now_millis, lambda: self.settings)

    def taken(self) -> dict[int, int]:
        asyncio.run(self.samples.take())
        return dict(self.samples.by_minute)


def test_two_that_were_told_the_same_in_another_order_have_the_same_number() -> None:
    one, two = Sampled(), Sampled()
    for sampled, addrs in ((one, (A, B)), (two, (B, A))):
        for addr in addrs:
            sampled.fleet.register(addr, topics=("T1", "T2"), name=f"broker-{addr}")
    assert one.taken() == two.taken()
    assert one.taken().keys() == {0}


def test_whatever_name_servers_hold_differently_makes_another_number() -> None:
    _, named, moved, drained, ending, ordered, changed = samples = [Sampled() for _ in range(7)]
    for sampled in samples:
        sampled.fleet.register(B if sampled is moved else A, topics=("T2" if sampled is named else "T1",))
    for sampled, ends_at_millis in ((drained, None), (ending, 1_000)):
        intent = Intent(IntentKind.WIPE_WRITE_PERM, BrokerKey("c", "broker-a"), "alice", 1, "", ends_at_millis)
        sampled.fleet.state.intents = IntentTable.of([intent])
    ordered.fleet.state.kv_config = KvConfigTable.of({"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4"}})
    changed.settings["orderMessageEnable"] = "true"
    numbers = {sampled.taken()[0] for sampled in samples}
    assert len(numbers) == len(samples)
    assert all(float(number) == number < 2**53 for number in numbers), "exact in Prometheus"


def test_the_minute_before_is_kept_and_no_older_one() -> None:
    sampled = Sampled()
    (first,) = sampled.taken().values()
    sampled.fleet.register(A, topics=("T",))
    assert sampled.samples.seconds_to_next() == 60.0
    sampled.now_millis += 59_990  # it woke a little early
    assert sampled.samples.seconds_to_next() == 0.01
    second = sampled.taken()
    assert second == {0: first, 1: second[1]}
    assert second[1] != first
    sampled.now_millis += 60_010
    assert sampled.taken().keys() == {1, 2}


# Symptoms: topics that nobody can write, lost topics, lone slaves, brokers at local addresses.

SLAVE, ELSEWHERE = "127.0.0.1:10912", "10.0.0.9:10911"


class Counted:
    """A fleet whose symptoms are counted on request."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.counter = SymptomCounter(self.fleet.state, Worker("reader"), self.fleet.clock.monotonic)

    def now(self) -> Symptoms:
        asyncio.run(self.counter.count())
        return self.counter.last


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_fleet_in_order_has_no_symptom(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders", "broker-a", ("SYNC", (1, 1, 1, 0))))
    counted.fleet.register(SLAVE, 1, topics=())
    counted.fleet.register(B, name="broker-b", topics=("orders",))
    assert counted.now() == Symptoms()
    wipe(counted.fleet, BrokerKey(CLUSTER, "broker-b"))
    assert counted.now() == Symptoms(), "planned work leaves each topic a writable queue"


def test_a_topic_without_a_writable_queue_counts_until_it_has_one(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders", "%RETRY%orders", "broker-a"))
    wipe(counted.fleet)
    assert counted.now().unwritable_topics == 1
    counted.fleet.register(B, name="broker-b", topics=("orders",))
    assert counted.now().unwritable_topics == 0


def test_a_topic_whose_master_left_cannot_be_written(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders",))
    counted.fleet.register(SLAVE, 1, topics=())
    counted.fleet.unregister(A)
    assert counted.now() == Symptoms(unwritable_topics=1, groups_without_master=1)


def test_a_topic_is_lost_with_its_last_broker_until_it_returns(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders", "only-here", "%RETRY%only-here", "broker-a"))
    counted.fleet.register(B, name="broker-b", topics=("orders",))
    counted.fleet.unregister(A)
    assert counted.now().lost_topics == 1
    counted.fleet.register(A, topics=("orders", "only-here"))
    assert counted.now().lost_topics == 0


def test_a_lost_topic_counts_for_a_day(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders",))
    counted.fleet.unregister(A)
    counted.now()
    counted.fleet.clock.advance(upkeep.LOST_SECONDS - 1)
    assert counted.now().lost_topics == 1
    counted.fleet.clock.advance(1)
    assert counted.now().lost_topics == 0


def test_a_deleted_topic_is_not_lost(counted: Counted) -> None:
    counted.fleet.register(A, topics=("orders",))
    delete_topic(counted.fleet, "orders")
    assert counted.now().lost_topics == 0


@pytest.mark.parametrize(
    ("address", "alone"),
    [("127.0.0.1:1", 0), ("localhost:1", 0), ("[::1]:1", 0), ("::1:1", 0), ("0.0.0.0:1", 1), ("[::]:1", 1)],
)
def test_loopback_counts_beside_other_addresses_and_a_wildcard_always(
    counted: Counted, address: str, alone: int
) -> None:
    counted.fleet.register(address)
    assert counted.now().local_brokers == alone
    counted.fleet.register(ELSEWHERE, name="broker-b")
    assert counted.now().local_brokers == 1
