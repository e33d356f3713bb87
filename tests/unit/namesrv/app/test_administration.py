"""Administration: changes are durable first, then in force. They run one at a time, in order, also without callers."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from namesrv_api.v1.admin_service_pb2 import BlastRadius, TopicsInUse
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.app.administration import (
    INTENT_ENDED,
    LONGEST_RETRY_SECONDS,
    POLL_SECONDS,
    Administration,
    GroupOutcome,
    Operation,
)
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, IntentTable, KvConfigTable
from namesrv.core.removals import OperatorOutcome
from namesrv.settings import NamesrvSettings
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import DATABASE_FILE, Database
from namesrv.storage.tables import INTENTS, KV_CONFIG, SETTINGS, DurableTable
from tests.support.core_fleet import CLUSTER, B, Fleet
from tests.support.fakes.busy_database import busy, refusing
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import holding

GROUP = BrokerKey(CLUSTER, "broker-a")
OPERATION = Operation(Cause("TheCall", "ipv4:127.0.0.1:1", "because"), "somebody")
OFF = {"returnOrderTopicConfigToBroker": "false"}
MAX_WAITING = 2

ContentT = TypeVar("ContentT")


def hold(topic: str, ends_at_millis: int | None = None) -> Intent:
    """A hold as a former life of the name server has left it."""
    return Intent(IntentKind.TOPIC_HOLD, HoldKey(topic, None), "somebody", 1, "", ends_at_millis)


def called(call: str) -> Operation:
    return Operation(Cause(call), "somebody")


async def put(made: Administration, key: str, value: str = "v", operation: Operation = OPERATION) -> str | None:
    return await made.put_kv("ns", key, value, operation)


async def wipe(
    made: Administration, name: str = "broker-a", operation: Operation = OPERATION, **fields: Any
) -> GroupOutcome:
    return await made.wipe_write_perm(name, CLUSTER, operation, **fields)


async def hold_topic(
    made: Administration, topic: str, operation: Operation = OPERATION, **fields: Any
) -> OperatorOutcome:
    return await made.hold_topic(HoldKey(topic, None), operation, **fields)


Kind = Callable[[Administration, Operation], Awaitable[object]]
KINDS: dict[str, Kind] = {
    "intents": lambda made, operation: wipe(made, operation=operation),
    "kv_config": lambda made, operation: put(made, "key", operation=operation),
    "settings": lambda made, operation: made.change_settings(OFF, operation),
}
"""An example of each kind of change."""
of_each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


class World:
    """A name server with one broker, whose operators change something."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fleet = Fleet()
        self.state = self.fleet.state
        self.flags: dict[str, object] = {}
        self.database: Database
        self.made: Administration

    def start(self, database: Database | None, writer: TableWriter | None = None) -> Administration:
        settings, now = NamesrvSettings.load(None, self.flags), self.fleet.clock.wall_millis
        writer = writer or TableWriter()
        self.made = Administration(self.state, writer, database, settings, now, max_waiting=MAX_WAITING)
        return self.made

    @asynccontextmanager
    async def running(self, writer: TableWriter | None = None) -> AsyncIterator[Administration]:
        """An administration from a start to a shutdown. In the end memory and disk must be the same."""
        self.database = Database(self.folder)
        try:
            made = self.start(self.database, writer)
            self.fleet.register()
            yield made
            self.state.frozen = True
            await made.close(20)
        finally:
            await self.database.close(20)
        assert self.stored == self.in_force

    async def keep(self, table: DurableTable[ContentT], content: ContentT) -> None:
        """Has a former life of the name server leave something in the database."""
        database = Database(self.folder)
        await database.replace(table, content)
        await database.close(20)

    @property
    def in_force(self) -> tuple[IntentTable, KvConfigTable, Mapping[str, str]]:
        return self.state.intents, self.state.kv_config, self.made.texts

    @property
    def stored(self) -> tuple[IntentTable, KvConfigTable, Mapping[str, str]]:
        """What a start would find."""
        with closing(sqlite3.connect(self.folder / DATABASE_FILE)) as reader:
            rows = reader.execute("SELECT name, key, value FROM durable").fetchall()

        def of(table: DurableTable[ContentT]) -> ContentT:
            return table.decode({key: value for name, key, value in rows if name == table.name})

        return of(INTENTS), of(KV_CONFIG), of(SETTINGS)

    @property
    def perm(self) -> int:
        route = self.fleet.route()
        assert route is not None
        return route.queue_datas[0].perm

    @property
    def causes(self) -> Iterator[str]:
        """The calls of all changes, in their order."""
        return (change.cause.call for change in reversed(self.state.change_log.newest_first()))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def under_way() -> None:
    """Waits until a change has been handed to the database."""
    for _ in range(5):
        await asyncio.sleep(0)


# Every kind of change.


@of_each_kind
async def test_a_change_is_in_force_only_once_it_is_durable(world: World, kind: Kind) -> None:
    async with world.running() as made:
        before, revision = world.in_force, world.state.revision
        async with busy(world.database):
            change = asyncio.ensure_future(kind(made, OPERATION))
            await under_way()
            assert world.in_force == world.stored == before
        await change
        assert world.in_force == world.stored != before
        assert (world.state.revision, world.state.change_log.last.cause) == (revision + 1, OPERATION.cause)


@of_each_kind
async def test_a_change_that_the_disk_refuses_changes_nothing(world: World, kind: Kind) -> None:
    async with world.running() as made:
        before, revision = world.in_force, world.state.revision
        async with refusing(world.database):
            with refuses(Reason.NOT_DURABLE, match="database is locked"):
                await kind(made, OPERATION)
            assert (world.in_force, world.stored, world.state.revision) == (before, before, revision)
        await kind(made, OPERATION)
        assert world.in_force == world.stored != before


@of_each_kind
@pytest.mark.parametrize("validate_only", [True, False], ids=["to validate", "of nothing"])
async def test_a_preview_and_a_change_of_nothing_take_no_revision_and_no_write(
    world: World, kind: Kind, validate_only: bool
) -> None:
    async with world.running() as made:
        if not validate_only:
            await kind(made, OPERATION)
        before, revision = world.in_force, world.state.revision
        async with refusing(world.database):
            await kind(made, OPERATION._replace(validate_only=validate_only))
        assert (world.in_force, world.state.revision) == (before, revision)


async def test_without_a_database_changes_are_previewed_and_refused(world: World) -> None:
    made = world.start(None)
    world.fleet.register()
    before, revision = world.in_force, world.state.revision
    for kind in KINDS.values():
        await kind(made, OPERATION._replace(validate_only=True))
        with refuses(Reason.NO_DATA_DIR):
            await kind(made, OPERATION)
    with refuses(Reason.CONFIG_KEY_DENIED):
        await made.change_settings({"dataDir": "/"}, OPERATION)
    assert (world.in_force, world.state.revision) == (before, revision) == ((IntentTable(), KvConfigTable(), {}), 1)
    await made.close(20)
    assert list(world.folder.iterdir()) == []


@of_each_kind
async def test_only_a_change_under_way_is_made_without_its_caller(world: World, kind: Kind) -> None:
    async with world.running() as made:
        async with busy(world.database):
            writing = asyncio.ensure_future(kind(made, OPERATION))
            await under_way()
            waiting = asyncio.create_task(put(made, "waiting", operation=called("waiting")))
            await asyncio.sleep(0)
            writing.cancel()
            waiting.cancel()
            results = await asyncio.gather(writing, waiting, return_exceptions=True)
            assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        await put(made, "next", operation=called("next"))
        assert list(world.causes)[1:] == [OPERATION.cause.call, "next"]


@of_each_kind
async def test_a_shutdown_waits_for_the_change_under_way_and_refuses_others(world: World, kind: Kind) -> None:
    async with world.running() as made:
        before = world.in_force
        async with busy(world.database) as lets:
            writing = asyncio.ensure_future(kind(made, OPERATION))
            await under_way()
            waiting: list[Awaitable[object]] = [asyncio.create_task(put(made, "late"))]
            await asyncio.sleep(0)
            world.state.frozen = True
            with capture_logs() as logs:
                await made.close(0.01)
            assert [line["event"] for line in logs] == ["operator_change_unfinished"]
            closes = asyncio.create_task(made.close(20))
            lets.set()
            await closes
        assert writing.done()
        assert world.in_force == world.stored != before
        waiting.extend(each(made, OPERATION) for each in KINDS.values())
        preview = OPERATION._replace(validate_only=True)
        waiting.extend((wipe(made, operation=preview), put(made, "late", operation=preview)))
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(result, Refused) and result.reason for result in results] == [Reason.SHUTTING_DOWN] * 6


async def test_changes_of_all_kinds_wait_in_one_bounded_line_in_their_order(world: World) -> None:
    assert len(KINDS) == 1 + MAX_WAITING
    async with world.running() as made:
        async with busy(world.database):
            changes = [asyncio.ensure_future(kind(made, called(name))) for name, kind in KINDS.items()]
            await under_way()
            for kind in KINDS.values():
                with refuses(Reason.OVERLOADED, match="2 changes by operators wait for their turn already"):
                    await kind(made, OPERATION)
        await asyncio.gather(*changes)
        assert await put(made, "key", operation=called("next")) == "v"
        assert list(world.causes)[1:] == [*KINDS]


# Intents.


async def test_an_intent_is_logged_when_it_is_decided_and_when_it_is_lifted(world: World) -> None:
    async with world.running() as made:
        with capture_logs() as logs:
            await wipe(made)
            assert (await wipe(made)).outcome == OperatorOutcome(BlastRadius(), 0)
            await made.add_write_perm("broker-a", CLUSTER, OPERATION)
        told = [
            (line["event"], line["kind"], line["broker"], line["caller"], line["comment"])
            for line in logs
            if "kind" in line
        ]
        about = ("WIPE_WRITE_PERM", "broker-a", OPERATION.cause.caller, "because")
        assert told == [("intent_decided", *about), ("intent_lifted", *about)]
        warned = [(line["event"], line["log_level"]) for line in logs if "kind" not in line]
        assert warned == [("topics_in_use_taken", "warning")]


async def test_durable_intents_get_in_force_though_too_many_changes_wait(world: World) -> None:
    writer = TableWriter(max_waiting=1)

    async with world.running(writer) as made:
        async with holding(writer, world.state):
            with refuses(Reason.OVERLOADED):
                await wipe(made, operation=OPERATION._replace(validate_only=True))
            change = asyncio.create_task(wipe(made))
            while not change.done() and writer.waiting <= 1:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
            assert (world.perm, world.stored[0].of_group(GROUP)) == (6, IntentKind.WIPE_WRITE_PERM)
            assert not change.done()
        await change
        assert world.perm == 4


async def test_of_two_drains_at_once_one_is_refused_before_it_is_durable(world: World) -> None:
    async with world.running() as made:
        world.fleet.register(B, name="broker-b")
        unforced = OPERATION._replace(force=False)
        changes = [wipe(made, name, unforced) for name in ("broker-a", "broker-b")]
        first, second = await asyncio.gather(*changes, return_exceptions=True)
        assert isinstance(first, GroupOutcome)
        assert isinstance(second, Refused)
        assert second.reason is Reason.TOPICS_IN_USE
        assert list(world.stored[0].intents) == [GROUP]
        outcome = (await wipe(made, "broker-b")).outcome
        assert outcome.blast_radius == BlastRadius(
            topics_changed=1, topics_losing_last_writable_queue=1, sample_topics=["TopicTest"]
        )
        assert outcome.in_use == TopicsInUse(topic_count=1, topics=["TopicTest"])


async def test_intents_are_taken_up_to_the_limit_and_not_one_more(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold(str(number)) for number in range(limits.MAX_INTENTS - 1)]))

    async with world.running() as made:
        await wipe(made)
        for validate_only in (True, False):
            with refuses(Reason.LIMIT_EXCEEDED, match=r"intents: 5001 is over the limit of 5000"):
                await hold_topic(made, "one more", OPERATION._replace(validate_only=validate_only))
        await hold_topic(made, "0", ends_at_millis=2**62)


async def test_intents_about_what_is_absent_are_taken_up_to_a_limit_of_their_own(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold(str(number)) for number in range(limits.MAX_ABSENT_INTENTS)]))

    async with world.running() as made:
        for validate_only in (True, False):
            operation = OPERATION._replace(validate_only=validate_only)
            with refuses(Reason.LIMIT_EXCEEDED, match="not registered.*: 1001 is over the limit of 1000"):
                await hold_topic(made, "one more", operation)
            with refuses(Reason.LIMIT_EXCEEDED, match="not registered.*: 1001 is over the limit of 1000"):
                await wipe(made, "nobody", operation)
        await wipe(made)
        for topic in ("TopicTest", "0"):  # one is reported, the other is held already
            await hold_topic(made, topic)
        await made.release_hold(HoldKey("1", None), OPERATION)
        await hold_topic(made, "one more")
        world.fleet.unregister()
        await made.add_write_perm("broker-a", CLUSTER, OPERATION)


# The ends of intents.


class Pauses:
    """Stands for sleep: does something at each pause, and ends the task after the last one."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.seconds: list[float] = []
        self._actions = list(actions)

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if not self._actions:
            raise asyncio.CancelledError
        self._actions.pop(0)()


async def test_an_intent_ends_by_itself_in_force_on_disk_and_in_the_journal(world: World) -> None:
    clock, perms = world.fleet.clock, []

    def passes(seconds: float) -> Callable[[], None]:
        def note_and_advance() -> None:
            perms.append(world.perm)
            clock.advance(seconds)

        return note_and_advance

    async with world.running() as made:
        await wipe(made, ends_at_millis=clock.wall_millis() + 1_000)
        await hold_topic(made, "without end")
        pauses = Pauses(passes(0.999), passes(0.001), passes(0))
        with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
            await made.lift_ended(pauses.sleep)
        assert perms == [4, 4, 6]
        assert pauses.seconds == [POLL_SECONDS] * 4
        assert list(world.stored[0].intents) == list(world.state.intents.intents) == [HoldKey("without end", None)]
        assert world.state.change_log.last.cause == INTENT_ENDED.cause
        assert [(line["event"], line["cause"]) for line in logs] == [("intent_lifted", "intent ended")]


async def test_an_end_that_the_disk_refuses_is_tried_again_ever_more_seldom(world: World) -> None:
    kept = IntentTable.of([hold("without end"), hold("later", 2**62)])
    await world.keep(INTENTS, IntentTable.of([hold("a", 1), hold("b", 2), *kept.intents.values()]))

    async with world.running() as made:
        async with refusing(world.database) as mend:
            pauses = Pauses(*[lambda: None] * 9, mend)
            with pytest.raises(asyncio.CancelledError):
                await made.lift_ended(pauses.sleep, random.Random(1))
        assert world.state.intents == kept
        *failed, after = pauses.seconds
        longest = [min(LONGEST_RETRY_SECONDS, POLL_SECONDS * 2**failures) for failures in range(1, 11)]
        assert all(most / 2 <= pause <= most for most, pause in zip(longest, failed, strict=True))
        assert len(set(failed)) == len(failed), "no jitter"
        assert after == POLL_SECONDS


async def test_a_shutdown_ends_the_lifting(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold("a", 1)]))

    async with world.running() as made:
        world.state.frozen = True
        await made.lift_ended(Pauses().sleep)
        assert world.state.intents == IntentTable.of([hold("a", 1)])


async def test_an_end_that_an_operator_moves_meanwhile_counts(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold("a", 1)]))

    async with world.running() as made:
        async with busy(world.database):
            moved = asyncio.create_task(hold_topic(made, "a", ends_at_millis=2**62))
            await under_way()
            lifting = asyncio.create_task(made.lift_ended(Pauses().sleep))
            await asyncio.sleep(0)
        await moved
        with pytest.raises(asyncio.CancelledError):
            await lifting
        assert [intent.ends_at_millis for intent in world.state.intents.intents.values()] == [2**62]


# KV configuration.


@pytest.mark.parametrize("validate_only", [False, True])
async def test_kv_keys_and_bytes_are_taken_up_to_their_limits_and_no_further(world: World, validate_only: bool) -> None:
    value = "x" * (limits.MAX_KV_BYTES // limits.MAX_KV_KEYS)
    full = {f"{key:05}": value[: -len("ns12345")] for key in range(limits.MAX_KV_KEYS)}
    left = limits.MAX_KV_BYTES - KvConfigTable.of({"ns": full}).byte_size
    last = full.pop("00000") + "x" * left
    await world.keep(KV_CONFIG, KvConfigTable.of({"ns": full}))

    async with world.running() as made:
        await put(made, "00000", last)
        table, operation = world.state.kv_config, OPERATION._replace(validate_only=validate_only)
        assert (table.key_count, table.byte_size) == (limits.MAX_KV_KEYS, limits.MAX_KV_BYTES)
        with refuses(Reason.LIMIT_EXCEEDED, match=r"keys .* 10001 is over the limit of 10000"):
            await put(made, "one more", "", operation)
        with refuses(Reason.LIMIT_EXCEEDED, match=f"bytes .* {limits.MAX_KV_BYTES + 1} is over the limit of"):
            await put(made, "00000", last + "x", operation)
        assert await put(made, "00000", "shorter", operation) == last


async def test_imported_kv_config_over_the_limits_may_shrink_but_not_grow(world: World) -> None:
    too_many = {str(key): "x" * 250 for key in range(limits.MAX_KV_KEYS + 10)}
    await world.keep(KV_CONFIG, KvConfigTable.of({"ns": too_many}))

    async with world.running() as made:
        await put(made, "1", "shorter")
        assert await made.delete_kv("ns", "2", OPERATION)
        for key, value in (("3", "x" * 5_000), ("2", "v")):
            with refuses(Reason.LIMIT_EXCEEDED):
                await put(made, key, value)


# Settings.


async def test_several_settings_are_one_change_with_each_value_in_its_usual_form(world: World) -> None:
    values = {
        "scanNotActiveBrokerInterval": "007",
        "returnOrderTopicConfigToBroker": "off",
        "orderMessageEnable": "false",
    }
    rows = (
        SettingChange("returnOrderTopicConfigToBroker", "true", "false"),
        SettingChange("scanNotActiveBrokerInterval", "10000", "7"),
    )

    async with world.running() as made:
        assert await made.change_settings(values, OPERATION._replace(validate_only=True)) == rows
        with capture_logs() as logs:
            assert await made.change_settings(values, OPERATION) == rows
        assert made.in_force.scan_not_active_broker_interval_millis == 7
        assert not world.state.behaviour.return_order_topic_config_to_broker
        assert world.state.change_log.last.rows == rows
        assert world.stored[2] == {**OFF, "scanNotActiveBrokerInterval": "7", "orderMessageEnable": "false"}
        told = {"event": "config_changed", "log_level": "info", "caller": OPERATION.cause.caller}
        assert logs == [{**told, "key": row.key, "value": row.after} for row in rows]


async def test_stored_settings_win_over_flags_and_environment_and_are_logged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: Mapping[str, str] = {"orderMessageEnable": "true", **OFF, "scanNotActiveBrokerInterval": "10"}
    await world.keep(SETTINGS, stored)
    monkeypatch.setenv("NAMESRV_SCAN_NOT_ACTIVE_BROKER_INTERVAL_MILLIS", "20")
    world.flags = {"order_message_enable": False, "listen": "127.0.0.1:1"}

    with capture_logs() as logs:
        async with world.running() as made:
            behaviour, settings, revision = world.state.behaviour, made.in_force, world.state.revision
            assert (behaviour.return_order_topic_config_to_broker, behaviour.order_message_enable) == (False, True)
            assert (settings.scan_not_active_broker_interval_millis, settings.listen) == (10, "127.0.0.1:1")
            equal = {"notifyMinBrokerIdChanged": "false"}
            assert await made.change_settings(equal, OPERATION) == ()
            assert (world.stored[2], world.state.revision) == ({**stored, **equal}, revision)
    told = [(line["key"], line["value"]) for line in logs if line["event"] == "config_override"]
    assert told == list(stored.items())


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("kvConfigPath", "x", "does not change over the wire"),
        ("scanNotActiveBrokerInterval", "-1", "Input should be greater than or equal to 0 (got '-1')"),
    ],
)
async def test_a_stored_setting_that_is_refused_stops_the_start_with_its_remedy(
    world: World, key: str, value: str, problem: str
) -> None:
    stored: Mapping[str, str] = {**OFF, key: value}
    await world.keep(SETTINGS, stored)
    database = Database(world.folder)
    with capture_logs() as logs, pytest.raises(DataDirError) as refused:
        world.start(database)
    assert logs == []
    before, _, remedy = str(refused.value).partition("; take it back: sqlite3 FILE ")
    assert before == f"{database.path}: setting {key}: {problem}"
    await database.close(20)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as shell:
        shell.execute(remedy.strip('"'))

    async with world.running() as made:
        assert made.texts == OFF
