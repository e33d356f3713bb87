"""IntentStore: one change at a time, on disk first, and what is on disk gets in force whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import errno
import itertools
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.app.intent_store import (
    IntentChange,
    IntentStore,
)
from namesrv.app.writer import TableWriter
from namesrv.core.errors import LimitExceeded, NoDataDir, NotDurable, Overloaded, ShuttingDown, TopicNotFound
from namesrv.core.model import BlastRadius, HoldKey, Intent, IntentKind, IntentTable
from namesrv.core.operator_changes import OperatorOutcome
from namesrv.core.slices import Sliced
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.intents_file import INTENTS_FILE, IntentsFile
from tests.support.fakes.failing_disk import Failure, failing_disk
from tests.support.fakes.held_disk import until
from tests.unit.namesrv.worlds.intent_world import CAUSE, WIPE, World, put, world

__all__ = ["world"]  # pytest finds the fixture by its name in this module


def hold(topic: str, ends_at_millis: int | None = None) -> Intent:
    return Intent(IntentKind.TOPIC_HOLD, HoldKey(topic, None), "somebody", 1, "", ends_at_millis)


def lift(intent: Intent) -> IntentChange:
    return lambda table: table.without([intent.key])


def endless() -> Sliced[None]:
    while True:
        yield


def test_a_change_is_on_disk_in_force_and_logged_when_it_is_answered(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        revision = world.manager.revision
        with capture_logs() as logs:
            outcome = await store.change(put(WIPE), CAUSE)
        assert outcome.blast_radius == BlastRadius(1, 1, 0, ("TopicTest",))
        assert world.on_disk == world.manager.intents == IntentTable.of([WIPE])
        assert (world.perm, world.manager.revision) == (4, revision + 1)
        assert world.manager.change_log.last.cause == CAUSE
        assert [(line["event"], line["kind"], line["broker"], line["caller"], line["comment"]) for line in logs] == [
            ("intent_decided", "WIPE_WRITE_PERM", "broker-a", CAUSE.caller, "because")
        ]
        with capture_logs() as logs:
            await store.change(lift(WIPE), CAUSE)
        assert [line["event"] for line in logs] == ["intent_lifted"]
        assert world.on_disk == world.manager.intents == IntentTable()
        assert (world.perm, world.manager.revision) == (6, revision + 2)

    world.run(steps)


def test_what_changes_nothing_takes_no_revision_and_no_write(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        await store.change(put(WIPE), CAUSE)
        revision, world.problem = world.manager.revision, OSError(errno.EIO, "not to be written")
        assert await store.change(lambda table: table, CAUSE) == OperatorOutcome(BlastRadius(), 0)
        assert world.manager.revision == revision

    world.run(steps)


def test_a_preview_tells_what_would_happen_and_changes_nothing(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        revision, world.problem = world.manager.revision, OSError(errno.EIO, "not to be written")
        outcome = await store.preview(put(WIPE))
        assert outcome.blast_radius == BlastRadius(1, 1, 0, ("TopicTest",))
        assert (world.perm, world.manager.revision) == (6, revision)

    world.run(steps)


def test_a_preview_sees_the_intents_that_are_in_force_when_its_turn_has_come(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        changed, preview = await asyncio.gather(store.change(put(WIPE), CAUSE), store.preview(put(hold("Other"))))
        assert [len(changed.intents), len(preview.intents)] == [1, 1]

    world.run(steps)


def test_without_a_file_no_intent_is_taken_but_everything_previewed(world: World) -> None:
    async def steps() -> None:
        store = IntentStore(world.manager, TableWriter(), None, world.fleet.clock.wall_millis)
        world.fleet.register()
        with pytest.raises(NoDataDir):
            await store.change(put(WIPE), CAUSE)
        assert (await store.preview(put(WIPE))).blast_radius.topics_changed == 1
        await store.close(20)

    asyncio.run(steps())
    assert world.manager.intents == IntentTable()
    assert world.perm == 6


def test_what_a_change_raises_is_raised_and_changes_nothing(world: World) -> None:
    def refuse(_: IntentTable) -> IntentTable:
        raise TopicNotFound("TopicTest")

    async def steps(store: IntentStore) -> None:
        for refused in (store.change(refuse, CAUSE), store.preview(refuse)):
            with pytest.raises(TopicNotFound):
                await refused
        await store.change(put(WIPE), CAUSE)

    world.run(steps)


def test_a_disk_that_fails_changes_nothing_and_the_next_change_goes_through(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        await store.change(put(hold("a")), CAUSE)
        revision, world.problem = world.manager.revision, OSError(errno.ENOSPC, "No space left on device")
        with capture_logs() as logs, pytest.raises(NotDurable, match="No space left on device"):
            await store.change(put(WIPE), CAUSE)
        assert [line["event"] for line in logs] == ["intents_not_durable"]
        assert world.on_disk == world.manager.intents == IntentTable.of([hold("a")])
        assert (world.perm, world.manager.revision) == (6, revision)
        world.problem = None
        await store.change(put(WIPE), CAUSE)
        assert world.perm == 4

    world.run(steps)


@pytest.mark.parametrize("failure", [Failure.ONCE, Failure.LATE])
def test_memory_and_disk_are_equal_whichever_operation_of_the_disk_fails(tmp_path: Path, failure: Failure) -> None:
    class FailingFile(IntentsFile):
        def save(self, content: IntentTable) -> None:
            with failing_disk(number, failure) as self.disk:
                super().save(content)

    async def steps() -> None:
        store = world.store(file=file)
        world.fleet.register()
        try:
            await store.change(put(WIPE), CAUSE)
        except NotDurable:
            assert file.disk.failed
        else:
            assert not file.disk.failed
        world.manager.frozen = True
        await store.close(20)

    for number in itertools.count(1):
        folder = tmp_path / str(number)
        folder.mkdir()
        IntentsFile(folder).save(IntentTable.of([hold("before")]))
        world, file = World(folder), FailingFile(folder)
        asyncio.run(steps())
        assert world.on_disk == world.manager.intents
        assert (world.perm, WIPE.key in world.manager.intents.intents) == (
            (6, False) if file.disk.failed else (4, True)
        )
        if not file.disk.failed:
            assert number > 5, "open, write, flush, sync and rename are among the operations"
            break


def test_a_kill_between_the_disk_and_the_tables_leaves_the_intent_to_the_next_start(world: World) -> None:
    class Killed(BaseException):
        """Stands for the end of the process."""

    class KilledAfterSave(IntentsFile):
        def save(self, content: IntentTable) -> None:
            super().save(content)
            raise Killed

    async def steps() -> None:
        store = world.store(file=KilledAfterSave(world.folder))
        world.fleet.register()
        with pytest.raises(Killed):
            await store.change(put(WIPE), CAUSE)
        await store.close(20)

    asyncio.run(steps())
    assert world.perm == 6
    World(world.folder).run(_expect_wiped)


async def _expect_wiped(store: IntentStore) -> None:
    outcome = await store.preview(lift(WIPE))
    assert outcome.blast_radius.topics_changed == 1


def test_the_intents_of_the_last_run_are_in_force_before_anything_registers(world: World) -> None:
    IntentsFile(world.folder).save(IntentTable.of([WIPE, hold("TopicTest2")]))

    async def steps(_store: IntentStore) -> None:
        assert world.perm == 4
        world.fleet.register(topics=["TopicTest2"], name="broker-b", addr="127.0.0.1:20911")
        assert world.fleet.topics == {"TopicTest"}

    world.run(steps)


def test_a_broken_file_is_not_taken_for_no_intents(world: World) -> None:
    (world.folder / INTENTS_FILE).write_text("{")
    with pytest.raises(DataDirError):
        world.store()


def test_the_event_loop_runs_on_and_the_old_permission_is_in_force_while_the_disk_is_busy(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        world.lets.clear()
        change = asyncio.create_task(store.change(put(WIPE), CAUSE))
        await until(world.busy)
        assert (world.perm, world.manager.intents) == (6, IntentTable())
        world.lets.set()
        await change
        assert world.perm == 4

    world.run(steps)


def test_changes_at_the_same_time_are_all_made_in_the_order_they_came(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        await asyncio.gather(*(store.change(put(hold(topic)), CAUSE) for topic in "abc"))
        assert [key.topic for key in world.manager.intents.intents if isinstance(key, HoldKey)] == ["a", "b", "c"]

    world.run(steps)


def test_more_waiting_changes_than_the_limit_are_refused(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        world.lets.clear()
        writing = asyncio.create_task(store.change(put(hold("a")), CAUSE))
        await until(world.busy)
        waiting = [asyncio.create_task(store.change(put(hold(topic)), CAUSE)) for topic in "bc"]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await store.change(put(hold("d")), CAUSE)
        world.lets.set()
        await asyncio.gather(writing, *waiting)
        assert len(world.manager.intents.intents) == 3

    world.run(steps)


def test_a_change_whose_caller_goes_away_is_made_if_its_turn_has_come_and_else_not(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        world.lets.clear()
        writing = asyncio.create_task(store.change(put(WIPE), CAUSE))
        await until(world.busy)
        waiting = asyncio.create_task(store.change(put(hold("a")), CAUSE))
        await asyncio.sleep(0)
        writing.cancel()
        waiting.cancel()
        results = await asyncio.gather(writing, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        world.lets.set()
        await store.change(put(hold("b")), CAUSE)
        assert world.manager.intents == IntentTable.of([WIPE, hold("b")])
        assert world.perm == 4

    world.run(steps)


def test_what_is_durable_gets_in_force_though_the_queue_of_changes_is_full(world: World) -> None:
    writer = TableWriter(max_waiting=1)

    async def steps(store: IntentStore) -> None:
        stuck = asyncio.create_task(writer.apply(endless()))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await store.preview(put(WIPE))
        change = asyncio.create_task(store.change(put(WIPE), CAUSE))
        await until(world.written)
        assert world.on_disk == IntentTable.of([WIPE])
        assert world.perm == 6
        stuck.cancel()
        await change
        assert world.perm == 4

    world.run(steps, writer)


def test_what_the_disk_is_writing_gets_in_force_though_the_tables_freeze_meanwhile(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        world.lets.clear()
        change = asyncio.create_task(store.change(put(WIPE), CAUSE))
        await until(world.busy)
        waiting = asyncio.create_task(store.change(put(hold("a")), CAUSE))
        await asyncio.sleep(0)
        world.manager.frozen = True
        closing = asyncio.create_task(store.close(20))
        world.lets.set()
        await change
        assert (world.perm, world.manager.intents) == (4, IntentTable.of([WIPE]))
        with pytest.raises(ShuttingDown):
            await waiting
        await closing

    world.run(steps)


def test_nothing_is_taken_after_the_tables_froze(world: World) -> None:
    async def steps(store: IntentStore) -> None:
        world.manager.frozen = True
        for refused in (store.change(put(WIPE), CAUSE), store.preview(put(WIPE))):
            with pytest.raises(ShuttingDown):
                await refused
        assert not world.busy.is_set()

    world.run(steps)


def test_intents_are_taken_up_to_the_limit_and_not_one_more(world: World) -> None:
    IntentsFile(world.folder).save(IntentTable.of([hold(str(number)) for number in range(limits.MAX_INTENTS - 1)]))

    async def steps(store: IntentStore) -> None:
        await store.change(put(WIPE), CAUSE)
        for refused in (store.change(put(hold("one more")), CAUSE), store.preview(put(hold("one more")))):
            with pytest.raises(LimitExceeded, match=r"intents: 5001 is over the limit of 5000"):
                await refused
        await store.change(put(hold("0", ends_at_millis=9)), CAUSE)

    world.run(steps)


def test_a_file_from_elsewhere_that_is_over_the_limit_may_shrink_but_not_grow(world: World) -> None:
    many = [hold(str(number)) for number in range(limits.MAX_INTENTS + 2)]
    IntentsFile(world.folder).save(IntentTable.of(many))

    async def steps(store: IntentStore) -> None:
        await store.change(lift(many[0]), CAUSE)
        with pytest.raises(LimitExceeded):
            await store.change(put(WIPE), CAUSE)

    world.run(steps)
