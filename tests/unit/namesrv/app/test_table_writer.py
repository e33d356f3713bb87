"""TableWriter: one change at a time, all or nothing of each, large ones prepared on a thread, and a fair line."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from structlog.testing import capture_logs

from namesrv.app.worker import FairLock, FairQueue
from namesrv.app.writer import (
    CHANGES_AT_ONCE,
    INLINE_TOPICS,
    LARGE_TOPICS,
    MAX_YIELDS,
    CommitFailed,
    TableWriter,
    run_cooperatively,
)
from namesrv.core import tables
from namesrv.core.changes import Cause
from namesrv.core.errors import Reason, shutting_down
from namesrv.core.model import BrokerKey, DataVersion, QueueNumbers, Registration
from namesrv.core.pace import Sliced
from namesrv.core.registrations import BrokerRegistration, TopicRegistration
from namesrv.core.removals import TopicDeletion
from namesrv.core.state import RouteState
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.patience import TIMEOUT
from tests.support.refusals import refuses
from tests.support.state_changes import HeldWork, Nothing
from tests.support.virtual_clock import VirtualClock
from tests.unit.namesrv.servicers import holding

LARGE = 10 * INLINE_TOPICS
QUEUES = (4, 4, 6, 0)
NEWER = DataVersion(2_000, 2)


class Noted:
    """A change that notes what becomes of it, and where."""

    def __init__(self, state: RouteState, name: str, events: list[str], topics: int = 0) -> None:
        self.state = state
        self.topics = topics
        self.is_prepared_on: int | None = None
        self.is_committed_on: int | None = None
        self._name = name
        self._events = events

    def prepare(self) -> None:
        self.is_prepared_on = threading.get_ident()
        self._events.append(f"prepare {self._name}")

    def commit(self) -> list[str]:
        self.is_committed_on = threading.get_ident()
        self._events.append(f"commit {self._name}")
        return [self._name]


class HeldTopics(dict[str, QueueNumbers]):
    """The topics of a registration. The thread takes half of them, then it does some work."""

    def __init__(self, count: int, work: Callable[[], None]) -> None:
        super().__init__((f"topic-{number}", QUEUES) for number in range(count))
        self._work = work

    def items(self) -> Iterator[tuple[str, QueueNumbers]]:  # type: ignore[override]
        for number, item in enumerate(super().items()):
            if number == len(self) // 2:
                self._work()
            yield item


def registration(fleet: Fleet, work: Callable[[], None] = lambda: None) -> BrokerRegistration:
    """A change that registers a broker with many topics; after half of them the thread does some work."""
    broker = BrokerKey(CLUSTER, "broker-a")
    return BrokerRegistration(fleet.state, Registration(broker, 0, A, NEWER, HeldTopics(LARGE, work)))


def shown(state: RouteState) -> object:
    """All that readers can see, and what the next registration builds on."""
    return (
        *state.snapshot().messages(),
        {broker: tuple(topics) for broker, topics in state.index.topics_by_broker.items()},
        state.generation,
    )


# Where changes are made.


async def test_small_changes_stay_on_the_event_loop_and_large_ones_go_elsewhere(fleet: Fleet) -> None:
    writer, loop = TableWriter(), threading.get_ident()
    small, large, larger = (Noted(fleet.state, "", [], topics) for topics in (INLINE_TOPICS, INLINE_TOPICS + 1, LARGE))
    for change in (small, large, larger):
        await writer.apply(change)
    thread = large.is_prepared_on
    assert thread != loop
    assert [small.is_prepared_on, larger.is_prepared_on] == [loop, thread]
    assert [change.is_committed_on for change in (small, large, larger)] == [loop] * 3


async def test_changes_that_follow_from_each_other_have_no_other_between_them(fleet: Fleet) -> None:
    events: list[str] = []
    asked_on: list[int] = []

    def changes() -> Iterator[Noted]:
        for name, topics in (("first", LARGE), ("second", 0)):
            asked_on.append(threading.get_ident())
            yield Noted(fleet.state, name, events, topics)

    writer = TableWriter()
    each = asyncio.create_task(writer.apply_each(changes()))
    await asyncio.sleep(0)
    other = asyncio.create_task(writer.apply(Noted(fleet.state, "other", events)))
    assert await each == ["first", "second"]
    await other
    assert threading.get_ident() not in asked_on
    assert [event for event in events if "commit" in event] == ["commit first", "commit second", "commit other"]


async def test_a_large_body_that_is_read_lets_changes_and_small_bodies_go_first(fleet: Fleet) -> None:
    events: list[str] = []
    writer, large = TableWriter(), HeldWork()
    reading = asyncio.create_task(writer.read(large, "a", is_large=True))
    await large.begun()
    await writer.apply(Noted(fleet.state, "it", events, LARGE), "a")
    await writer.read(partial(events.append, "read"), "a")
    assert not reading.done()
    large.let_go()
    await reading
    assert events == ["prepare it", "commit it", "read"]


async def test_a_large_registration_encodes_what_it_reports_before_others_wait(fleet: Fleet) -> None:
    topics = {f"topic-{number}": (number + 1, 4, 6, 0) for number in range(LARGE_TOPICS + 1)}
    broker = BrokerKey(CLUSTER, "broker-a")
    change = BrokerRegistration(fleet.state, Registration(broker, 0, A, NEWER, topics))

    queue_datas = fleet.state.index.queue_datas
    writer = TableWriter()
    async with holding(writer, fleet.state, "b"):
        registering = asyncio.create_task(writer.read_and_apply(change, "a"))
        await asyncio.sleep(0)
    await registering
    assert len(change._encoded) == len(topics)
    assert all(queue_datas.of_group(broker)[reported] is made for reported, made in change._encoded.items())


# All or nothing.


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_caller_that_goes_half_way_leaves_the_tables_as_they_were(fleet: Fleet, *, is_known: bool) -> None:
    if is_known:
        fleet.register(topics=["topic-1", "another"])
    before = shown(fleet.state)

    writer, held = TableWriter(), HeldWork()
    going = asyncio.create_task(writer.apply(registration(fleet, held)))
    await held.begun()
    going.cancel()
    await asyncio.wait([going])
    assert going.cancelled()
    await writer.apply(Nothing(fleet.state))
    assert shown(fleet.state) == before
    assert (await writer.apply(registration(fleet))).changed
    assert fleet.topics >= {f"topic-{number}" for number in range(LARGE)}


def fail(*_: object) -> None:
    raise KeyError("a defect")


def refuse(*_: object) -> None:
    raise shutting_down()


@pytest.mark.parametrize("defect", [fail, refuse])
async def test_a_listener_that_fails_ends_the_name_server(fleet: Fleet, defect: Callable[..., None]) -> None:
    fleet.state.change_log.listen(defect)
    writer = TableWriter()
    with capture_logs() as lines, refuses(Reason.SHUTTING_DOWN):
        await writer.apply(registration(fleet))
    (line,) = [line for line in lines if line["event"] == "commit_failed"]
    assert (line["change"], line["listener"]) == ("BrokerRegistration", defect.__name__)
    with pytest.raises(CommitFailed, match="BrokerRegistration"):
        await writer.until_failed()
    with refuses(Reason.SHUTTING_DOWN):
        await writer.apply(Nothing(fleet.state))
    with refuses(Reason.SHUTTING_DOWN):
        fleet.state.snapshot()


async def test_a_change_without_preparation_that_fails_ends_the_name_server(fleet: Fleet) -> None:
    writer = TableWriter()
    for _ in range(2):
        with refuses(Reason.SHUTTING_DOWN):
            writer.commit_now(fleet.state, "PutKvConfig", fail)
    with pytest.raises(CommitFailed, match="PutKvConfig"):
        await writer.until_failed()


async def test_a_preparation_that_fails_changes_nothing(fleet: Fleet) -> None:
    writer = TableWriter()
    with pytest.raises(KeyError):
        await writer.apply(registration(fleet, fail))
    assert (await writer.apply(registration(fleet))).changed


# The line of changes.


async def test_a_change_waits_for_one_of_an_owner_however_many_that_one_has_in_line(fleet: Fleet) -> None:
    events: list[str] = []
    writer = TableWriter()
    async with holding(writer, fleet.state, "many"):
        others = [asyncio.create_task(writer.apply(Noted(fleet.state, "many", events), "many")) for _ in range(12)]
        await asyncio.sleep(0)
        one = asyncio.create_task(writer.apply(Noted(fleet.state, "one", events), "one"))
        own = asyncio.create_task(writer.apply(Noted(fleet.state, "own", events)))
        await asyncio.sleep(0)
    await asyncio.gather(*others, one, own)
    assert [event for event in events if "commit" in event][:2] == ["commit one", "commit own"]


async def test_small_changes_leave_others_their_turn_after_a_few(fleet: Fleet) -> None:
    events: list[str] = []
    writer = TableWriter()
    changes = [asyncio.create_task(writer.apply(Noted(fleet.state, "", events), "a")) for _ in range(20)]
    made_by_turn = [0]
    while made_by_turn[-1] < len(changes):
        await asyncio.sleep(0)
        made_by_turn.append(len(events) // 2)
    await asyncio.gather(*changes)
    assert max(after - before for before, after in itertools.pairwise(made_by_turn)) == CHANGES_AT_ONCE


async def test_too_many_waiting_changes_are_refused_but_durable_ones_are_not(fleet: Fleet) -> None:
    events: list[str] = []
    writer = TableWriter(max_waiting=2)
    async with holding(writer, fleet.state, "a"):
        waiting = asyncio.create_task(writer.apply(Nothing(fleet.state), "b"))
        await asyncio.sleep(0)
        with refuses(Reason.OVERLOADED, match="2 changes wait for their turn already"):
            await writer.apply(Noted(fleet.state, "refused", events), "c")
        durable = asyncio.create_task(writer.apply(Noted(fleet.state, "durable", events)))
        await asyncio.sleep(0)
    await asyncio.gather(waiting, durable)
    await writer.apply(Noted(fleet.state, "later", events))
    assert [event for event in events if "commit" in event] == ["commit durable", "commit later"]


# Steps on the event loop.


async def turns_between_two_slices(slice_seconds: float, turn_seconds: float) -> int:
    clock = VirtualClock()
    turns = 0

    def slices() -> Sliced[None]:
        clock.advance(slice_seconds)
        yield

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1
            clock.advance(turn_seconds)

    busy = asyncio.create_task(others())
    await asyncio.sleep(0)  # it waits for its first turn
    await run_cooperatively(slices(), clock.monotonic)
    busy.cancel()
    return turns


async def test_others_get_as_much_time_as_a_slice_took() -> None:
    assert await turns_between_two_slices(1.0, 0.125) == 8
    assert await turns_between_two_slices(1.0, 1.5) == 1


async def test_an_idle_event_loop_holds_steps_up_for_a_bounded_number_of_turns() -> None:
    assert await turns_between_two_slices(1.0, 0.0) == MAX_YIELDS


async def test_names_of_topics_that_are_gone_are_forgotten_in_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SPARE", 0)
    fleet.register()
    writer = TableWriter()
    for number in range(5):
        topic = f"topic-{number}"
        for change in (
            TopicRegistration(fleet.state, topic, {BrokerKey(CLUSTER, "broker-a"): QUEUES}),
            TopicDeletion(fleet.state, topic, None, Cause("DeleteTopic")),
        ):
            await writer.apply(change, "owner")
            assert not fleet.state.tables.topic_queue_table.is_sparse
    assert fleet.topics == {"TopicTest"}


async def holders(callers: Sequence[str], cancelled: int | None = None, at_once: int = 1) -> list[str]:
    """The order in which callers hold the lock. The first one holds it until the last one waits.

    Args:
        cancelled: The index of a caller that is cancelled once those before it have held the lock.
    """
    lock, all_wait, order = FairLock(at_once), asyncio.Event(), list[str]()

    async def hold(caller: str) -> None:
        async with lock.held_for(caller[0]):
            order.append(caller)
            await all_wait.wait()
            await asyncio.sleep(0)
            assert order[-1] == caller, "nobody else has it meanwhile"

    tasks = []
    for caller in callers:
        tasks.append(asyncio.create_task(hold(caller)))
        await asyncio.sleep(0)
    all_wait.set()
    if cancelled is not None:
        while len(order) < cancelled:  # noqa: ASYNC110 - the holders set no event
            await asyncio.sleep(0)
        tasks[cancelled].cancel()
    async with asyncio.timeout(TIMEOUT):
        await asyncio.wait(tasks)
    return order


async def test_a_cancelled_waiter_leaves_the_lock_to_the_next_one() -> None:
    for cancelled, left in ((1, ["a1", "a3", "a4"]), (2, ["a1", "a2", "a4"])):
        assert await holders(["a1", "a2", "a3", "a4"], cancelled) == left


async def test_a_waiter_that_is_called_and_finds_the_lock_held_keeps_its_place() -> None:
    assert await holders(["a1", "a2", "b1", "c1", "d1"], at_once=3) == ["a1", "b1", "c1", "d1", "a2"]
    assert await holders(["a1", "a2", "a3", "a4", "a5"], at_once=3) == ["a1", "a2", "a3", "a4", "a5"]


def test_items_of_an_owner_that_are_next_are_served_as_they_come() -> None:
    queue = FairQueue[int]()
    for item, is_next in ((3, False), (1, True), (4, False), (2, True)):
        queue.put("a", item, is_next=is_next)
    assert [queue.get() for _ in range(4)] == [1, 2, 3, 4]
