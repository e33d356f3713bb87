"""The end of intents with an end: on time, tried again, and never against a later intent."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from namesrv.app.intent_store import (
    INTENT_ENDED,
    LONGEST_RETRY_SECONDS,
    POLL_SECONDS,
    IntentStore,
)
from namesrv.core.model import HoldKey, Intent, IntentKind, IntentTable
from namesrv.storage.intents_file import IntentsFile
from tests.support.fakes.held_disk import until
from tests.unit.namesrv.worlds.intent_world import CAUSE, GROUP, World, put, world

__all__ = ["world"]  # pytest finds the fixture by its name in this module


def hold(topic: str, ends_at_millis: int | None = None) -> Intent:
    return Intent(IntentKind.TOPIC_HOLD, HoldKey(topic, None), "somebody", 1, "", ends_at_millis)


class Pauses:
    """Stands for sleep: lets a test do something at each pause, and ends the task after the last one."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.seconds: list[float] = []
        self._actions = list(actions)

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if not self._actions:
            raise asyncio.CancelledError
        self._actions.pop(0)()


def test_an_intent_ends_by_itself_on_disk_in_force_and_in_the_journal(world: World) -> None:
    ends_at = world.fleet.clock.wall_millis() + 1_000
    wipe = Intent(IntentKind.WIPE_WRITE_PERM, GROUP, "somebody", 1, "", ends_at)
    perms: list[int] = []

    def passes(seconds: float) -> Callable[[], None]:
        def note_and_advance() -> None:
            perms.append(world.perm)
            world.fleet.clock.advance(seconds)

        return note_and_advance

    async def steps(store: IntentStore) -> None:
        await store.change(put(wipe), CAUSE)
        await store.change(put(hold("without end")), CAUSE)
        pauses = Pauses(passes(0.999), passes(0.001), passes(0))
        with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
            await store.lift_ended(pauses.sleep)
        assert perms == [4, 4, 6]
        assert pauses.seconds == [POLL_SECONDS] * 4
        assert world.on_disk == IntentTable.of([hold("without end")])
        assert world.manager.change_log.last.cause == INTENT_ENDED
        assert [(line["event"], line["cause"]) for line in logs] == [("intent_lifted", "intent ended")]

    world.run(steps)


def test_what_ended_while_the_name_server_was_down_is_lifted_at_once(world: World) -> None:
    IntentsFile(world.folder).save(IntentTable.of([hold("a", 1), hold("b", 2), hold("c")]))

    async def steps(store: IntentStore) -> None:
        with pytest.raises(asyncio.CancelledError):
            await store.lift_ended(Pauses().sleep)
        assert world.manager.intents == IntentTable.of([hold("c")])

    world.run(steps)


def test_an_intent_that_a_full_disk_keeps_is_tried_again_ever_more_seldom_until_it_is_lifted(world: World) -> None:
    IntentsFile(world.folder).save(IntentTable.of([hold("a", 1)]))

    async def steps(store: IntentStore) -> None:
        def mend() -> None:
            assert world.manager.intents == IntentTable.of([hold("a", 1)])
            world.problem = None

        world.problem = OSError(errno.ENOSPC, "No space left on device")
        pauses = Pauses(*[lambda: None] * 9, mend)
        with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
            await store.lift_ended(pauses.sleep, random.Random(1))
        assert world.manager.intents == IntentTable()
        *failed, after = pauses.seconds
        steps = [min(LONGEST_RETRY_SECONDS, POLL_SECONDS * 2**failures) for failures in range(1, 11)]
        assert all(step / 2 <= pause <= step for step, pause in zip(steps, failed, strict=True))
        assert len(set(failed)) == len(failed), "no jitter"
        assert after == POLL_SECONDS
        assert [line["event"] for line in logs] == [*["intents_not_durable"] * 10, "intent_lifted"]

    world.run(steps)


def test_lifting_ends_with_the_first_intent_that_a_shutdown_keeps(world: World) -> None:
    IntentsFile(world.folder).save(IntentTable.of([hold("a", 1)]))

    async def steps(store: IntentStore) -> None:
        world.manager.frozen = True
        await store.lift_ended(Pauses().sleep)
        assert world.manager.intents == IntentTable.of([hold("a", 1)])

    world.run(steps)


def test_an_end_that_an_operator_moved_while_the_disk_was_busy_counts(world: World) -> None:
    IntentsFile(world.folder).save(IntentTable.of([hold("a", 1)]))

    async def steps(store: IntentStore) -> None:
        world.lets.clear()
        moved = asyncio.create_task(store.change(put(hold("a", 2**62)), CAUSE))
        await until(world.busy)
        lifting = asyncio.create_task(store.lift_ended(Pauses().sleep))
        await asyncio.sleep(0)
        world.lets.set()
        await moved
        with pytest.raises(asyncio.CancelledError):
            await lifting
        assert world.manager.intents == IntentTable.of([hold("a", 2**62)])

    world.run(steps)
