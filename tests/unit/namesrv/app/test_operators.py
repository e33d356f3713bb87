"""Operators: changes are durable first, then in force. They run one at a time, in order, also without their callers."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from namesrv_api.v1.admin_service_pb2 import BlastRadius, TopicsInUse
from structlog.testing import capture_logs

from namesrv import limits
from namesrv.app.operators import (
    INTENT_ENDED,
    LONGEST_RETRY_SECONDS,
    POLL_SECONDS,
    IntentEdit,
    KvEdit,
    Operators,
    stored_settings,
)
from namesrv.app.writer import TableWriter
from namesrv.core.changes import Cause, SettingChange
from namesrv.core.errors import Reason, Refused
from namesrv.core.model import (
    EMPTY,
    BrokerKey,
    HoldKey,
    Intent,
    IntentKind,
    IntentTable,
    KvConfigTable,
)
from namesrv.core.operator_changes import OperatorOutcome, publish_behaviour
from namesrv.settings import NamesrvSettings
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import DATABASE_FILE, Database
from namesrv.storage.tables import INTENTS, KV_CONFIG, SETTINGS, DurableTable
from tests.support.core_fleet import CLUSTER, B, Fleet
from tests.support.fakes.busy_database import busy, refusing
from tests.support.refusals import refuses
from tests.unit.namesrv.servicers import holding

GROUP = BrokerKey(CLUSTER, "broker-a")
CAUSE = Cause("TheCall", "ipv4:127.0.0.1:1", "because")
WIPE = Intent(IntentKind.WIPE_WRITE_PERM, GROUP, CAUSE.caller, 1, "because")
OFF, ON = {"returnOrderTopicConfigToBroker": "false"}, {"returnOrderTopicConfigToBroker": "true"}
MAX_WAITING = 2

ContentT = TypeVar("ContentT")


def decide(intent: Intent) -> IntentEdit:
    return lambda table: table if table.intents.get(intent.key) == intent else table.with_intent(intent)


def lift(intent: Intent) -> IntentEdit:
    return lambda table: table.without([intent.key])


def hold(topic: str, ends_at_millis: int | None = None) -> Intent:
    return Intent(IntentKind.TOPIC_HOLD, HoldKey(topic, None), "somebody", 1, "", ends_at_millis)


def put(key: str, value: str = "v") -> KvEdit:
    return lambda table: table.with_value("ns", key, value)


def delete(key: str) -> KvEdit:
    return lambda table: table.without("ns", key)


Kind = Callable[..., Awaitable[object]]
KINDS: dict[str, Kind] = {
    "intents": lambda operators, **options: operators.change_intents(decide(WIPE), CAUSE, **options),
    "kv_config": lambda operators, **options: operators.change_kv_config(put("key"), CAUSE, **options),
    "settings": lambda operators, **options: operators.change_settings(OFF, CAUSE, **options),
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
        self.applied: list[tuple[NamesrvSettings, Sequence[SettingChange], Cause]] = []
        self.database: Database
        self.operators: Operators

    def start(self, database: Database | None, writer: TableWriter | None = None) -> Operators:
        in_force = stored_settings(NamesrvSettings.load(None, self.flags), database)
        self.operators = Operators(
            self.fleet.state,
            writer or TableWriter(),
            database,
            in_force,
            apply_settings=self.apply,
            wall_millis=self.fleet.clock.wall_millis,
            max_waiting=MAX_WAITING,
        )
        return self.operators

    def apply(self, settings: NamesrvSettings, rows: Sequence[SettingChange], cause: Cause) -> None:
        self.applied.append((settings, rows, cause))
        publish_behaviour(self.fleet.state, settings.behaviour, cause, tuple(rows))

    @asynccontextmanager
    async def running(self, writer: TableWriter | None = None) -> AsyncIterator[Operators]:
        """Operators from a start to a shutdown. In the end memory and disk must be the same."""
        self.database = Database(self.folder)
        try:
            operators = self.start(self.database, writer)
            self.fleet.register()
            yield operators
            self.state.frozen = True
            await operators.close(20)
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
        return self.state.intents, self.state.kv_config, self.operators.in_force.texts

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


async def under_way(operators: Operators) -> None:
    """Waits until a change runs."""
    while not operators._turn.waiting:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


# Every kind of change.


@of_each_kind
async def test_a_change_is_in_force_only_once_it_is_durable(world: World, kind: Kind) -> None:
    async with world.running() as operators:
        before, revision = world.in_force, world.state.revision
        async with busy(world.database):
            change = asyncio.ensure_future(kind(operators))
            await under_way(operators)
            assert world.in_force == world.stored == before
        await change
        assert world.in_force == world.stored != before
        assert (world.state.revision, world.state.change_log.last.cause) == (revision + 1, CAUSE)


@of_each_kind
async def test_a_change_that_the_disk_refuses_changes_nothing(world: World, kind: Kind) -> None:
    async with world.running() as operators:
        before, revision = world.in_force, world.state.revision
        async with refusing(world.database):
            with refuses(Reason.NOT_DURABLE, match="database is locked"):
                await kind(operators)
            assert (world.in_force, world.stored, world.state.revision) == (before, before, revision)
        await kind(operators)
        assert world.in_force == world.stored != before


@of_each_kind
@pytest.mark.parametrize("validate_only", [True, False], ids=["to validate", "of nothing"])
async def test_a_preview_and_a_change_of_nothing_take_no_revision_and_no_write(
    world: World, kind: Kind, validate_only: bool
) -> None:
    async with world.running() as operators:
        if not validate_only:
            await kind(operators)
        before, revision = world.in_force, world.state.revision
        async with refusing(world.database):
            await kind(operators, validate_only=validate_only)
        assert (world.in_force, world.state.revision) == (before, revision)


@of_each_kind
async def test_without_a_database_changes_are_previewed_and_refused(world: World, kind: Kind) -> None:
    operators = world.start(None)
    world.fleet.register()
    before, revision = world.in_force, world.state.revision
    assert await kind(operators, validate_only=True)
    with refuses(Reason.NO_DATA_DIR):
        await kind(operators)
    with refuses(Reason.CONFIG_KEY_DENIED):
        await operators.change_settings({"dataDir": "/"}, CAUSE)
    assert (world.in_force, world.state.revision) == (before, revision) == ((IntentTable(), EMPTY, {}), 1)
    await operators.close(20)
    assert list(world.folder.iterdir()) == []


@of_each_kind
async def test_only_a_change_under_way_is_made_without_its_caller(world: World, kind: Kind) -> None:
    async with world.running() as operators:
        async with busy(world.database):
            writing = asyncio.ensure_future(kind(operators))
            await under_way(operators)
            waiting = asyncio.create_task(operators.change_kv_config(put("waiting"), Cause("waiting")))
            await asyncio.sleep(0)
            writing.cancel()
            waiting.cancel()
            results = await asyncio.gather(writing, waiting, return_exceptions=True)
            assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        await operators.change_kv_config(put("next"), Cause("next"))
        assert list(world.causes)[1:] == [CAUSE.call, "next"]


@of_each_kind
async def test_a_shutdown_waits_for_the_change_under_way_and_refuses_others(world: World, kind: Kind) -> None:
    async with world.running() as operators:
        before = world.in_force
        async with busy(world.database) as lets:
            writing = asyncio.ensure_future(kind(operators))
            await under_way(operators)
            waiting: list[Awaitable[object]] = [asyncio.create_task(operators.change_kv_config(put("late"), CAUSE))]
            await asyncio.sleep(0)
            world.state.frozen = True
            with capture_logs() as logs:
                await operators.close(0.01)
            assert [line["event"] for line in logs] == ["operators_change_did_not_end"]
            closes = asyncio.create_task(operators.close(20))
            lets.set()
            await closes
        assert writing.done()
        assert world.in_force == world.stored != before
        waiting.extend(each(operators) for each in KINDS.values())
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(result, Refused) and result.reason for result in results] == [Reason.SHUTTING_DOWN] * 4
        with refuses(Reason.SHUTTING_DOWN):
            await operators.change_intents(decide(WIPE), CAUSE, validate_only=True)
        with refuses(Reason.SHUTTING_DOWN):
            await operators.change_kv_config(put("late"), CAUSE, validate_only=True)


async def test_changes_of_all_kinds_are_made_in_the_order_they_came(world: World) -> None:
    async with world.running() as operators:
        async with busy(world.database):
            first = asyncio.create_task(operators.change_kv_config(put("key", "1"), Cause("first")))
            await under_way(operators)
            second = asyncio.create_task(operators.change_settings(OFF, Cause("second")))
            third = asyncio.create_task(operators.change_kv_config(put("key", "2"), Cause("third")))
        befores = [(await change).get("ns", "key") for change in (first, third)]
        await second
        assert befores == [None, "1"]
        assert list(world.causes)[-3:] == ["first", "second", "third"]


async def test_changes_of_all_kinds_that_wait_are_bounded_together(world: World) -> None:
    assert len(KINDS) == 1 + MAX_WAITING
    async with world.running() as operators:
        async with busy(world.database):
            changes = [asyncio.ensure_future(kind(operators)) for kind in KINDS.values()]
            await under_way(operators)
            for kind in KINDS.values():
                with refuses(Reason.OVERLOADED, match="2 changes by operators wait for their turn already"):
                    await kind(operators)
        await asyncio.gather(*changes)
        await operators.change_kv_config(put("next"), CAUSE)


async def test_what_the_last_life_stored_is_in_force_before_any_registration(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([WIPE, hold("TopicHeld")]))
    await world.keep(KV_CONFIG, put("key")(EMPTY))

    async with world.running() as _operators:
        assert world.perm == 4
        world.fleet.register(B, topics=["TopicHeld"], name="broker-b")
        assert world.fleet.topics == {"TopicTest"}
        assert world.state.kv_config.get("ns", "key") == "v"


# Intents.


async def test_a_change_of_intents_is_answered_and_logged_with_what_it_did(world: World) -> None:
    async with world.running() as operators:
        radius = BlastRadius(topics_changed=1, topics_losing_last_writable_queue=1, sample_topics=["TopicTest"])
        assert (await operators.change_intents(decide(WIPE), CAUSE, validate_only=True)).blast_radius == radius
        with capture_logs() as logs:
            assert (await operators.change_intents(decide(WIPE), CAUSE)).blast_radius == radius
            assert world.perm == 4
            assert await operators.change_intents(decide(WIPE), CAUSE) == OperatorOutcome(BlastRadius(), 0)
            await operators.change_intents(lift(WIPE), CAUSE)
            assert world.perm == 6
        told = [
            (line["event"], line["kind"], line["broker"], line["caller"], line["comment"])
            for line in logs
            if "kind" in line
        ]
        about = ("WIPE_WRITE_PERM", "broker-a", CAUSE.caller, "because")
        assert told == [("intent_decided", *about), ("intent_lifted", *about)]
        warned = [(line["event"], line["log_level"]) for line in logs if "kind" not in line]
        assert warned == [("topics_in_use_taken", "warning")]


async def test_durable_intents_get_in_force_though_too_many_changes_wait(world: World) -> None:
    writer = TableWriter(max_waiting=1)

    async with world.running(writer) as operators:
        async with holding(writer, world.state):
            with refuses(Reason.OVERLOADED):
                await operators.change_intents(decide(WIPE), CAUSE, validate_only=True)
            change = asyncio.create_task(operators.change_intents(decide(WIPE), CAUSE))
            while not change.done() and writer.waiting <= 1:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0)
            assert (world.perm, world.stored[0], change.done()) == (6, IntentTable.of([WIPE]), False)
        await change
        assert world.perm == 4


async def test_what_takes_topics_from_producers_is_refused_before_it_is_durable(world: World) -> None:
    async with world.running() as operators:
        radius = BlastRadius(topics_changed=1, topics_losing_last_writable_queue=1, sample_topics=["TopicTest"])
        with refuses(Reason.TOPICS_IN_USE, match="TopicTest"):
            await operators.change_intents(decide(WIPE), CAUSE, refuse_in_use=True)
        assert (world.perm, world.stored[0]) == (6, IntentTable())
        world.fleet.register(B, name="broker-b")
        other = replace(WIPE, key=BrokerKey(CLUSTER, "broker-b"))
        changes = [operators.change_intents(decide(one), CAUSE, refuse_in_use=True) for one in (WIPE, other)]
        first, second = await asyncio.gather(*changes, return_exceptions=True)
        assert isinstance(first, OperatorOutcome), "of two at the same time one is made"
        assert isinstance(second, Refused)
        assert second.reason is Reason.TOPICS_IN_USE
        assert world.stored[0] == IntentTable.of([WIPE])
        outcome = await operators.change_intents(decide(other), CAUSE)
        assert outcome.blast_radius == radius
        assert outcome.in_use == TopicsInUse(topic_count=1, topics=["TopicTest"])


async def test_intents_are_taken_up_to_the_limit_and_not_one_more(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold(str(number)) for number in range(limits.MAX_INTENTS - 1)]))

    async with world.running() as operators:
        await operators.change_intents(decide(WIPE), CAUSE)
        for validate_only in (True, False):
            with refuses(Reason.LIMIT_EXCEEDED, match=r"intents: 5001 is over the limit of 5000"):
                await operators.change_intents(decide(hold("one more")), CAUSE, validate_only=validate_only)
        await operators.change_intents(decide(hold("0", ends_at_millis=9)), CAUSE)


async def test_intents_about_what_is_absent_are_taken_up_to_a_limit_of_their_own(world: World) -> None:
    absent = [hold(str(number)) for number in range(limits.MAX_ABSENT_INTENTS)]
    await world.keep(INTENTS, IntentTable.of(absent))

    async with world.running() as operators:
        for intent in (hold("one more"), replace(WIPE, key=BrokerKey(CLUSTER, "nobody"))):
            for validate_only in (True, False):
                with refuses(Reason.LIMIT_EXCEEDED, match="not registered.*: 1001 is over the limit of 1000"):
                    await operators.change_intents(decide(intent), CAUSE, validate_only=validate_only)
        await operators.change_intents(decide(WIPE), CAUSE)
        await operators.change_intents(decide(hold("TopicTest")), CAUSE)
        await operators.change_intents(decide(replace(absent[0], comment="another")), CAUSE)
        await operators.change_intents(lift(absent[1]), CAUSE)
        await operators.change_intents(decide(hold("one more")), CAUSE)
        world.fleet.unregister()
        await operators.change_intents(lift(WIPE), CAUSE)


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

    async with world.running() as operators:
        ending = Intent(IntentKind.WIPE_WRITE_PERM, GROUP, "somebody", 1, "", clock.wall_millis() + 1_000)
        await operators.change_intents(decide(ending), CAUSE)
        await operators.change_intents(decide(hold("without end")), CAUSE)
        pauses = Pauses(passes(0.999), passes(0.001), passes(0))
        with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
            await operators.lift_ended(pauses.sleep)
        assert perms == [4, 4, 6]
        assert pauses.seconds == [POLL_SECONDS] * 4
        assert world.stored[0] == world.state.intents == IntentTable.of([hold("without end")])
        assert world.state.change_log.last.cause == INTENT_ENDED
        assert [(line["event"], line["cause"]) for line in logs] == [("intent_lifted", "intent ended")]


async def test_what_ended_while_the_name_server_was_down_is_lifted_at_once(world: World) -> None:
    kept = IntentTable.of([hold("without end"), hold("later", 2**62)])
    await world.keep(INTENTS, IntentTable.of([hold("a", 1), hold("b", 2), *kept.intents.values()]))

    async with world.running() as operators:
        with pytest.raises(asyncio.CancelledError):
            await operators.lift_ended(Pauses().sleep)
        assert world.state.intents == kept


async def test_an_end_that_the_disk_refuses_is_tried_again_ever_more_seldom(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold("a", 1)]))

    async with world.running() as operators:
        async with refusing(world.database) as mend:
            pauses = Pauses(*[lambda: None] * 9, mend)
            with pytest.raises(asyncio.CancelledError):
                await operators.lift_ended(pauses.sleep, random.Random(1))
        assert world.state.intents == IntentTable()
        *failed, after = pauses.seconds
        longest = [min(LONGEST_RETRY_SECONDS, POLL_SECONDS * 2**failures) for failures in range(1, 11)]
        assert all(most / 2 <= pause <= most for most, pause in zip(longest, failed, strict=True))
        assert len(set(failed)) == len(failed), "no jitter"
        assert after == POLL_SECONDS


async def test_a_shutdown_ends_the_lifting(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold("a", 1)]))

    async with world.running() as operators:
        world.state.frozen = True
        await operators.lift_ended(Pauses().sleep)
        assert world.state.intents == IntentTable.of([hold("a", 1)])


async def test_an_end_that_an_operator_moves_meanwhile_counts(world: World) -> None:
    await world.keep(INTENTS, IntentTable.of([hold("a", 1)]))

    async with world.running() as operators:
        async with busy(world.database):
            moved = asyncio.create_task(operators.change_intents(decide(hold("a", 2**62)), CAUSE))
            await under_way(operators)
            lifting = asyncio.create_task(operators.lift_ended(Pauses().sleep))
            await asyncio.sleep(0)
        await moved
        with pytest.raises(asyncio.CancelledError):
            await lifting
        assert world.state.intents == IntentTable.of([hold("a", 2**62)])


# KV configuration.


@pytest.mark.parametrize("validate_only", [False, True])
async def test_a_change_of_kv_config_is_answered_with_the_table_before_it(world: World, validate_only: bool) -> None:
    await world.keep(KV_CONFIG, put("key")(EMPTY))

    async with world.running() as operators:
        former = await operators.change_kv_config(delete("key"), CAUSE, validate_only=validate_only)
        assert former == put("key")(EMPTY)
        assert world.state.kv_config.get("ns", "key") == ("v" if validate_only else None)


@pytest.mark.parametrize("validate_only", [False, True])
async def test_kv_keys_and_bytes_are_taken_up_to_their_limits_and_no_further(world: World, validate_only: bool) -> None:
    value = "x" * (limits.MAX_KV_BYTES // limits.MAX_KV_KEYS)
    full = {f"{key:05}": value[: -len("ns12345")] for key in range(limits.MAX_KV_KEYS)}
    left = limits.MAX_KV_BYTES - KvConfigTable.of({"ns": full}).byte_size
    await world.keep(KV_CONFIG, delete("00000")(KvConfigTable.of({"ns": full})))

    async with world.running() as operators:
        last = full["00000"] + "x" * left
        await operators.change_kv_config(put("00000", last), CAUSE)
        table = world.state.kv_config
        assert (table.key_count, table.byte_size) == (limits.MAX_KV_KEYS, limits.MAX_KV_BYTES)
        for change, problem in (
            (put("one more", ""), r"keys .* 10001 is over the limit of 10000"),
            (put("00000", last + "x"), f"bytes .* {limits.MAX_KV_BYTES + 1} is over the limit of"),
        ):
            with refuses(Reason.LIMIT_EXCEEDED, match=problem):
                await operators.change_kv_config(change, CAUSE, validate_only=validate_only)
        await operators.change_kv_config(put("00000", "shorter"), CAUSE, validate_only=validate_only)


async def test_imported_kv_config_over_the_limits_may_shrink_but_not_grow(world: World) -> None:
    too_many = {str(key): "x" * 250 for key in range(limits.MAX_KV_KEYS + 10)}
    await world.keep(KV_CONFIG, KvConfigTable.of({"ns": too_many}))

    async with world.running() as operators:
        await operators.change_kv_config(put("1", "shorter"), CAUSE)
        await operators.change_kv_config(delete("2"), CAUSE)
        for growth in (put("3", "x" * 5_000), put("2")):
            with refuses(Reason.LIMIT_EXCEEDED):
                await operators.change_kv_config(growth, CAUSE)


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

    async with world.running() as operators:
        assert await operators.change_settings(values, CAUSE, validate_only=True) == rows
        with capture_logs() as logs:
            assert await operators.change_settings(values, CAUSE) == rows
        settings = operators.in_force.settings
        assert settings.return_order_topic_config_to_broker is False
        assert settings.scan_not_active_broker_interval_millis == 7
        assert world.applied == [(settings, rows, CAUSE)]
        assert world.stored[2] == {**OFF, "scanNotActiveBrokerInterval": "7", "orderMessageEnable": "false"}
        told = {"event": "config_changed", "log_level": "info", "caller": CAUSE.caller}
        assert logs == [{**told, "key": row.key, "value": row.after} for row in rows]


async def test_a_setting_with_the_value_it_has_is_stored_so_that_it_wins_later(world: World) -> None:
    async with world.running() as operators:
        assert await operators.change_settings(ON, CAUSE) == ()
        assert (world.applied, world.stored[2]) == ([], ON)

    world = World(world.folder)
    world.flags = {"return_order_topic_config_to_broker": False}
    async with world.running() as operators:
        assert operators.in_force.settings.return_order_topic_config_to_broker is True


async def test_stored_settings_win_over_flags_and_environment_and_are_logged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: Mapping[str, str] = {"orderMessageEnable": "true", **OFF, "scanNotActiveBrokerInterval": "10"}
    await world.keep(SETTINGS, stored)
    monkeypatch.setenv("NAMESRV_SCAN_NOT_ACTIVE_BROKER_INTERVAL_MILLIS", "20")
    world.flags = {"order_message_enable": False, "listen": "127.0.0.1:1"}

    with capture_logs() as logs:
        async with world.running() as operators:
            settings = operators.in_force.settings
            assert (settings.return_order_topic_config_to_broker, settings.order_message_enable) == (False, True)
            assert (settings.scan_not_active_broker_interval_millis, settings.listen) == (10, "127.0.0.1:1")
            assert await operators.change_settings({"orderMessageEnable": "true"}, CAUSE) == ()
    told = [(line["key"], line["value"]) for line in logs if line["event"] == "config_override"]
    assert told == list(stored.items())
    assert world.applied == []


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("listen", "0.0.0.0:1", "does not change over the wire"),
        ("kvConfigPath", "x", "does not change over the wire"),
        ("orderMessages", "1", "there is no such setting; did you mean orderMessageEnable? GetNamesrvConfig lists all"),
        ("scanNotActiveBrokerInterval", "-1", "Input should be greater than or equal to 0 (got '-1')"),
        ("orderMessageEnable", "x" * 256, "has 256 characters, at most 255"),
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

    async with world.running() as operators:
        assert operators.in_force.texts == OFF
