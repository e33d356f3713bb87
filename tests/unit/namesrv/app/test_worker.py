"""A worker: the event loop continues while its thread computes, and a job that has ended leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from namesrv.app import worker as worker_module
from namesrv.app.worker import OWN_SECONDS, WORK_SECONDS, YIELD_SECONDS, TimedYields, Urgency, Worker
from namesrv.core.changes import Cause, Change
from namesrv.core.errors import Reason, invalid_field, suppress_refusals
from namesrv.core.model import BrokerKey, BrokerLiveInfo, DataVersion, LiveKey
from namesrv.core.pace import yield_point
from tests.support.core_fleet import CLUSTER, A, Fleet
from tests.support.state_changes import HeldWork

ResultT = TypeVar("ResultT")


async def begin(work: Awaitable[ResultT]) -> asyncio.Task[ResultT]:
    """Begins to wait for work, so that its job stands in line."""

    async def wait() -> ResultT:
        return await work

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


# An ended job leaves nothing.


class Large:
    """Stands for a parsed request of 150 MiB."""


@pytest.fixture
def no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only reference counts free what is not needed. The worker's own runs of the collector do nothing, either."""
    gc.collect()
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    gc.disable()
    yield
    gc.enable()


async def returned(worker: Worker, large: Large) -> None:
    assert await worker.run(lambda: large) is large


async def raised(worker: Worker, large: Large) -> None:
    def work(large: Large) -> None:
        raise invalid_field("topic", f"is bad, as {large} has it")

    with suppress_refusals(Reason.INVALID_FIELD):
        await worker.run(partial(work, large))


async def cancelled_while_it_ran(worker: Worker, large: Large) -> None:
    held = HeldWork()

    def work(_large: Large) -> None:
        held()

    task = await begin(worker.run(partial(work, large)))
    await held.begun()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def cancelled_while_it_waited(worker: Worker, large: Large) -> None:
    ahead = HeldWork()
    first = await begin(worker.run(ahead))
    await ahead.begun()
    begun = list[Large]()
    task = await begin(worker.run(lambda: begun.append(large)))
    task.cancel()
    await asyncio.sleep(0)  # it is told
    ahead.let_go()
    await asyncio.wait([first, task])
    assert (task.cancelled(), begun) == (True, [])


ENDS = (returned, raised, cancelled_while_it_ran, cancelled_while_it_waited)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("no_collector")
async def test_nothing_is_left_of_a_job_however_it_ended(
    end: Callable[[Worker, Large], Coroutine[Any, Any, None]],
) -> None:
    worker, large = Worker("test"), Large()
    reference = weakref.ref(large)
    ending = end(worker, large)
    del large
    await ending
    await worker.run(int)  # the thread is done with the job before
    assert reference() is None


# The event loop continues.


@pytest.mark.parametrize("yields", [True, False])
async def test_the_event_loop_goes_on_while_a_job_runs(*, yields: bool) -> None:
    turns = 0

    def work() -> None:
        while turns < 100:
            if yields:
                yield_point()

    job = await begin(Worker("test").run(work))
    while not job.done():
        turns += 1
        await asyncio.sleep(0)
    await job


async def test_a_job_has_the_context_of_its_caller() -> None:
    caller: ContextVar[str] = ContextVar("caller")

    caller.set("somebody")
    assert (await Worker("test").run(caller.get)) == "somebody"


# The line of jobs.


async def test_jobs_that_wait_go_by_urgency_and_then_by_owner_in_turn() -> None:
    worker, ahead, done = Worker("test"), HeldWork(), list[str]()
    first = await begin(worker.run(ahead, "a"))
    await ahead.begun()
    waiting = [
        ("a1", Urgency.USUAL),
        ("a2", Urgency.USUAL),
        ("b1", Urgency.USUAL),
        ("b2", Urgency.USUAL),
        ("c1", Urgency.LARGE),
        ("a3", Urgency.FIRST),
    ]
    jobs = [await begin(worker.run(partial(done.append, name), name[0], urgency)) for name, urgency in waiting]
    jobs.append(await begin(worker.run(partial(done.append, "a0"), "a", is_next=True)))
    ahead.let_go()
    await asyncio.gather(first, *jobs)
    assert done == ["a3", "c1", "b1", "a0", "b2", "a1", "a2"]


async def test_a_large_job_is_interrupted_and_goes_on_as_long_as_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now, order = 0.0, list[str]()

    def works(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(worker_module, "time", SimpleNamespace(perf_counter=lambda: now, sleep=works))

    def little() -> None:
        order.append("small")
        works(1.0)

    def large() -> None:
        while len(order) < 12:
            order.append("large")
            works(OWN_SECONDS / 2)
            yield_point()

    worker, ahead = Worker("test"), HeldWork()
    first = await begin(worker.run(ahead))
    await ahead.begun()
    small = [await begin(worker.run(little, "b")) for _ in range(3)]
    job = await begin(worker.run(large, "a", Urgency.LARGE))
    ahead.let_go()
    await asyncio.gather(first, job, *small)
    assert order[:9] == ["large", "small", "large", "large", "small", "large", "large", "small", "large"]


async def test_a_cancelled_job_ends_at_its_next_yield_point_and_its_caller_after_it() -> None:
    worker, held, events = Worker("test"), HeldWork(), list[str]()

    def work() -> None:
        try:
            held()
        except Exception:  # noqa: BLE001 - what a computation does with an error of its own
            events.append("taken for an error")
        finally:
            events.append("work")

    task = await begin(worker.run(work))
    task.add_done_callback(lambda _: events.append("caller"))
    await held.begun()
    task.cancel()
    await asyncio.wait([task])
    assert await worker.run(lambda: "the next one") == "the next one"
    assert events == ["work", "caller"]


# The thread.


async def test_an_idle_thread_ends_and_the_next_job_has_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LINGER_SECONDS", 0.0)

    def is_there() -> bool:
        return any(thread.name == "lingering" for thread in threading.enumerate())

    worker = Worker("lingering")
    for _ in range(100):  # some come just as the thread ends
        await worker.run(int)
    while is_there():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.001)
    assert await asyncio.gather(*(worker.run(threading.get_ident) for _ in range(3)))


def no_memory(*_: object) -> int:
    raise MemoryError("none is left")


@pytest.mark.parametrize(("owner", "name"), [(threading.Thread, "start"), (gc, "collect")])
async def test_an_error_before_or_after_a_job_is_its_callers_and_the_next_job_is_done(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    worker = Worker("test")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, no_memory)
        with pytest.raises(MemoryError, match="none is left"):
            await worker.run(int)
    assert await worker.run(lambda: "done") == "done"


# Ownership.

KEY, CAUSE = LiveKey(CLUSTER, A), Cause("test")
LIVE = BrokerLiveInfo(BrokerKey(CLUSTER, "broker-a"), 0, A, None, DataVersion(1, 1), "c", 1, 120.0)
TOUCHES: dict[str, Callable[[Fleet], object]] = {
    "liveness: heard": lambda fleet: fleet.query(),
    "liveness: open_channel": lambda fleet: fleet.state.liveness.open_channel(),
    "liveness: end_channel": lambda fleet: fleet.state.liveness.end_channel("c"),
    "liveness: bind": lambda fleet: fleet.state.liveness.bind(LIVE),
    "liveness: unbind": lambda fleet: fleet.state.liveness.unbind(LIVE),
    "liveness: take_bound": lambda fleet: fleet.state.liveness.take_bound("c"),
    "liveness: give": lambda fleet: fleet.state.liveness.give(KEY, 1.0),
    "liveness: forget": lambda fleet: fleet.state.liveness.forget(KEY),
    "liveness: grant_more_time": lambda fleet: fleet.state.liveness.grant_more_time(1.0),
    "change log: append": lambda fleet: fleet.state.change_log.append(Change(CAUSE, ()), 1),
    "a commit": lambda fleet: fleet.register(version=DataVersion(9, 9)),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
async def test_a_thread_that_touches_what_belongs_to_the_event_loop_fails(
    fleet: Fleet, touch: Callable[[Fleet], object]
) -> None:
    fleet.register()
    before = fleet.state.revision, dict(fleet.state.liveness.last_update_millis)
    fleet.clock.advance(1.0)
    with pytest.raises(AssertionError, match="belongs to the event loop"):
        await Worker("test").run(partial(touch, fleet))
    assert (fleet.state.revision, fleet.state.liveness.last_update_millis) == before


def test_a_thread_yields_once_it_has_worked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(worker_module, "time", SimpleNamespace(perf_counter=lambda: now, sleep=sleep))
    yields = TimedYields()
    for _ in range(10):
        now += WORK_SECONDS / 4
        yields()
    assert slept == [YIELD_SECONDS] * 2
