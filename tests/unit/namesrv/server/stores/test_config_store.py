"""ConfigStore: one change at a time, on disk first, then in force; all keys or none."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from namesrv.app.config_store import ConfigStore
from namesrv.core.changes import Cause, ConfigPut
from namesrv.core.errors import ConfigKeyDenied, InvalidField, NoDataDir, NotDurable, Overloaded, ShuttingDown
from namesrv.settings import NamesrvSettings
from namesrv.storage.config_file import CONFIG_FILE, ConfigFile
from namesrv.storage.data_dir import DataDirError
from tests.support.fakes.held_disk import HeldDisk, until

CAUSE = Cause("UpdateNamesrvConfig", "ipv4:127.0.0.1:1")
OFF = {"returnOrderTopicConfigToBroker": "false"}
ON = {"returnOrderTopicConfigToBroker": "true"}


class World(HeldDisk):
    """A data directory, a disk that writes when it is let and fails if told to, and what the store told."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.settings = NamesrvSettings.load(None, {})
        self.frozen = False
        self.applied: list[tuple[NamesrvSettings, Sequence[ConfigPut], Cause]] = []

    def apply(self, settings: NamesrvSettings, rows: Sequence[ConfigPut], cause: Cause) -> None:
        self.applied.append((settings, rows, cause))

    def store(self, file: ConfigFile | None) -> ConfigStore:
        return ConfigStore(self.settings, file, self.apply, lambda: self.frozen, max_waiting=2)

    @property
    def on_disk(self) -> Mapping[str, str]:
        return ConfigFile(self.folder).load()

    @property
    def rows(self) -> list[tuple[str, str]]:
        return [(row.key, row.value) for _, rows, _ in self.applied for row in rows]

    def run(self, steps: Callable[[ConfigStore], Awaitable[None]]) -> None:
        """Runs steps on a store, and closes it as a shutdown does."""

        async def opened_and_closed() -> None:
            store = self.store(ConfigFile(self.folder, self.write))
            try:
                await steps(store)
            finally:
                self.frozen = True
                await store.close(20)

        asyncio.run(opened_and_closed())
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("config")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.lets.set()  # or the writer thread would outlive a test that failed


def test_a_change_is_on_disk_and_in_force_when_it_is_answered(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        with capture_logs() as logs:
            assert await store.change(OFF, CAUSE) == (ConfigPut("returnOrderTopicConfigToBroker", "false"),)
        assert world.on_disk == OFF
        assert store.settings.return_order_topic_config_to_broker is False
        assert world.applied == [(store.settings, (ConfigPut("returnOrderTopicConfigToBroker", "false"),), CAUSE)]
        line = {
            "event": "config_changed",
            "key": "returnOrderTopicConfigToBroker",
            "value": "false",
            "caller": CAUSE.caller,
        }
        assert logs == [{**line, "log_level": "info"}]

    world.run(steps)


def test_several_keys_are_one_change_with_values_in_one_way_of_writing(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        values = {
            "scanNotActiveBrokerInterval": "007",
            "returnOrderTopicConfigToBroker": "off",
            "supportActingMaster": "false",
        }
        rows = await store.change(values, CAUSE)
        assert rows == (
            ConfigPut("returnOrderTopicConfigToBroker", "false"),
            ConfigPut("scanNotActiveBrokerInterval", "7"),
        )
        assert len(world.applied) == 1
        assert world.on_disk == {
            "returnOrderTopicConfigToBroker": "false",
            "scanNotActiveBrokerInterval": "7",
            "supportActingMaster": "false",
        }

    world.run(steps)


def test_a_key_that_needs_a_restart_is_stored_and_told_but_not_in_force(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        acting = {"supportActingMaster": "true"}
        row = ConfigPut("supportActingMaster", "true")
        assert await store.change(acting, CAUSE) == (row,)
        assert world.applied == [(store.settings, (row,), CAUSE)]
        assert store.settings.model_dump() == world.settings.model_dump()
        assert await store.change(acting, CAUSE) == (), "it has that value already, for the next start"
        await store.change(OFF, CAUSE)
        assert (store.settings.support_acting_master, store.settings.return_order_topic_config_to_broker) == (
            False,
            False,
        )
        assert world.on_disk == {**acting, **OFF}

    world.run(steps)


def test_the_value_that_a_setting_has_already_is_stored_without_being_a_change(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        assert await store.change(ON, CAUSE) == ()
        assert (world.applied, world.on_disk) == ([], ON)
        world.problem = OSError(errno.EIO, "not to be written")
        assert await store.change(ON, CAUSE) == ()
        assert await store.change({}, CAUSE) == ()

    world.run(steps)
    world.settings = NamesrvSettings.load(None, {"return_order_topic_config_to_broker": False})

    async def after_restart(store: ConfigStore) -> None:
        assert store.settings.return_order_topic_config_to_broker is True

    world.run(after_restart)


def test_all_keys_or_none(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        for bad, error in (
            ({"scanNotActiveBrokerInterval": "-1"}, InvalidField),
            ({"noSuchSetting": "1"}, InvalidField),
            ({"dataDir": "/"}, ConfigKeyDenied),
            ({"configStorePath": "/"}, ConfigKeyDenied),
        ):
            with pytest.raises(error):
                await store.change({**OFF, **bad}, CAUSE)
            with pytest.raises(error):
                store.preview({**OFF, **bad})
        assert store.settings.model_dump() == world.settings.model_dump()

    world.run(steps)
    assert world.applied == []
    assert list(world.folder.iterdir()) == []


def test_a_preview_answers_what_would_change_and_changes_nothing(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        would = store.preview({**OFF, "supportActingMaster": "true", "orderMessageEnable": "false"})
        assert would == (ConfigPut("returnOrderTopicConfigToBroker", "false"), ConfigPut("supportActingMaster", "true"))
        assert store.settings.model_dump() == world.settings.model_dump()

    world.run(steps)
    assert world.applied == []
    assert list(world.folder.iterdir()) == []


def test_without_a_data_directory_changes_can_be_checked_but_not_made(world: World) -> None:
    async def steps() -> None:
        store = world.store(None)
        assert store.preview(OFF) == (ConfigPut("returnOrderTopicConfigToBroker", "false"),)
        with pytest.raises(NoDataDir):
            await store.change(OFF, CAUSE)
        with pytest.raises(ConfigKeyDenied):
            await store.change({"kvConfigPath": "/"}, CAUSE)
        assert store.settings is world.settings
        await store.close(20)

    asyncio.run(steps())
    assert world.applied == []


def test_a_disk_that_fails_changes_nothing_and_the_next_change_goes_through(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        await store.change({"orderMessageEnable": "true"}, CAUSE)
        world.problem = OSError(errno.ENOSPC, "No space left on device")
        with capture_logs() as logs, pytest.raises(NotDurable, match="No space left on device"):
            await store.change({**OFF, "supportActingMaster": "true"}, CAUSE)
        problem = {"file": str(world.folder / CONFIG_FILE), "problem": "No space left on device"}
        assert logs == [{"event": "config_not_durable", "log_level": "error", **problem}]
        assert (world.on_disk, store.settings.return_order_topic_config_to_broker) == (
            {"orderMessageEnable": "true"},
            True,
        )
        assert world.rows == [("orderMessageEnable", "true")]
        world.problem = None
        assert await store.change({"supportActingMaster": "true"}, CAUSE) == (ConfigPut("supportActingMaster", "true"),)
        assert world.on_disk == {"orderMessageEnable": "true", "supportActingMaster": "true"}

    world.run(steps)


def test_the_old_value_is_in_force_while_the_disk_is_busy(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        world.lets.clear()
        change = asyncio.create_task(store.change(OFF, CAUSE))
        await until(world.busy)
        assert (store.settings.return_order_topic_config_to_broker, world.applied) == (True, [])
        world.lets.set()
        await change
        assert store.settings.return_order_topic_config_to_broker is False

    world.run(steps)


def test_changes_at_the_same_time_are_all_made_in_the_order_they_came(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        changes = [
            {"scanNotActiveBrokerInterval": "10"},
            {"scanNotActiveBrokerInterval": "20", "orderMessageEnable": "true"},
            OFF,
        ]
        await asyncio.gather(*(store.change(values, CAUSE) for values in changes))
        assert world.rows == [
            ("scanNotActiveBrokerInterval", "10"),
            ("orderMessageEnable", "true"),
            ("scanNotActiveBrokerInterval", "20"),
            ("returnOrderTopicConfigToBroker", "false"),
        ]
        assert world.on_disk == {"scanNotActiveBrokerInterval": "20", "orderMessageEnable": "true", **OFF}

    world.run(steps)


def test_more_waiting_changes_than_the_limit_are_refused(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        world.lets.clear()
        writing = asyncio.create_task(store.change(OFF, CAUSE))
        await until(world.busy)
        waiting = [
            asyncio.create_task(store.change({"scanNotActiveBrokerInterval": percent}, CAUSE))
            for percent in ("10", "20")
        ]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 changes of config wait"):
            await store.change({"scanNotActiveBrokerInterval": "30"}, CAUSE)
        world.lets.set()
        await asyncio.gather(writing, *waiting)
        assert store.settings.scan_not_active_broker_interval_millis == 20

    world.run(steps)


def test_a_change_whose_caller_goes_away_is_made_if_its_turn_has_come_and_else_not(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        world.lets.clear()
        writing = asyncio.create_task(store.change(OFF, CAUSE))
        await until(world.busy)
        waiting = asyncio.create_task(store.change({"scanNotActiveBrokerInterval": "10"}, CAUSE))
        await asyncio.sleep(0)
        writing.cancel()
        waiting.cancel()
        results = await asyncio.gather(writing, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        world.lets.set()
        await store.change({"orderMessageEnable": "true"}, CAUSE)
        assert world.rows == [("returnOrderTopicConfigToBroker", "false"), ("orderMessageEnable", "true")]
        assert world.on_disk == {**OFF, "orderMessageEnable": "true"}

    world.run(steps)


def test_a_shutdown_waits_for_the_write_under_way_and_refuses_the_ones_behind_it(world: World) -> None:
    async def steps(store: ConfigStore) -> None:
        world.lets.clear()
        writing = asyncio.create_task(store.change(OFF, CAUSE))
        await until(world.busy)
        waiting = asyncio.create_task(store.change({"scanNotActiveBrokerInterval": "10"}, CAUSE))
        await asyncio.sleep(0)
        world.frozen = True
        with capture_logs() as logs:
            await store.close(0.01)
        assert [line["event"] for line in logs] == ["config_write_did_not_end"]
        world.lets.set()
        await writing
        for late in (waiting, store.change(ON, CAUSE)):
            with pytest.raises(ShuttingDown):
                await late
        assert world.on_disk == OFF

    world.run(steps)


def test_the_changes_of_the_last_run_win_over_flags_and_environment_and_are_logged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConfigFile(world.folder).save({**OFF, "supportActingMaster": "true", "scanNotActiveBrokerInterval": "10"})
    monkeypatch.setenv("NAMESRV_SCAN_NOT_ACTIVE_BROKER_INTERVAL_MILLIS", "20")
    world.settings = NamesrvSettings.load(None, {"support_acting_master": False, "listen": "127.0.0.1:1"})

    async def steps(store: ConfigStore) -> None:
        settings = store.settings
        assert (settings.return_order_topic_config_to_broker, settings.support_acting_master) == (False, True)
        assert (settings.scan_not_active_broker_interval_millis, settings.listen) == (10, "127.0.0.1:1")
        assert await store.change({"supportActingMaster": "true"}, CAUSE) == ()

    with capture_logs() as logged:
        world.run(steps)
    logs = [(line["event"], line["key"], line["value"]) for line in logged]
    assert logs == [
        ("config_override", "returnOrderTopicConfigToBroker", "false"),
        ("config_override", "scanNotActiveBrokerInterval", "10"),
        ("config_override", "supportActingMaster", "true"),
    ]
    assert world.applied == []


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("listen", "0.0.0.0:1", "listen: never changes over the wire; remove it from the file$"),
        ("kvConfigPath", "x", "kvConfigPath: never changes over the wire; remove it from the file$"),
        ("gone", "1", "gone: there is no such setting; remove it from the file$"),
        ("orderMessages", "1", "orderMessages: there is no such setting; remove it from the file$"),
        ("scanNotActiveBrokerInterval", "-1", "scanNotActiveBrokerInterval: .* greater than or equal to 0 "),
        ("orderMessageEnable", "x" * 256, "orderMessageEnable: has 256 characters, at most 255$"),
    ],
)
def test_a_file_with_what_could_not_be_set_over_the_wire_stops_the_start(
    world: World, key: str, value: str, problem: str
) -> None:
    (world.folder / CONFIG_FILE).write_text(json.dumps({**OFF, key: value}))
    with capture_logs() as logs, pytest.raises(DataDirError, match=f"{CONFIG_FILE}: {problem}"):
        world.store(ConfigFile(world.folder))
    assert logs == []
