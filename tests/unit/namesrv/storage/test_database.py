"""The database: what it took is there after any end, what it refused is not, and damaged files are left alone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from namesrv.core.errors import Reason
from namesrv.core.model import BrokerKey, Intent, IntentKind, IntentTable, KvConfigTable
from namesrv.storage import database
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import APPLICATION_ID, DATABASE_FILE, FORMAT, HANG_SECONDS, PROBE_SECONDS, Database
from namesrv.storage.tables import INTENTS, KV_CONFIG, SETTINGS, TABLES, DurableTable
from tests.properties import examples
from tests.support.fakes.busy_database import busy, held_by_another
from tests.support.programs.processes import eventually
from tests.support.refusals import refuses
from tests.support.virtual_clock import VirtualClock
from tests.unit.namesrv.storage.storage_inputs import CLOSE_SECONDS, CONTENTS, EMPTY, opened, stored

LATER = DurableTable[dict[str, str]]("later", dict, dict)
"""A table that this version does not know."""

REMEDIES = (
    "move it and its -wal away; then restore a backup, or start without",
    "start the newer version, or restore a backup",
    "restore both, or move that one away",
    "end the other program",
    "give this process the right to",
    "make room on the disk",
    "move away what is in its place",
    "use a local disk",
    "check the disk",
)
NOBODY = 65_534
MANY = {f"key {number}": "v" * 80 for number in range(150)}
"""Rows of more than one page of the file."""

EXAMPLES: dict[str, Any] = {
    "kv_config": KvConfigTable.of({"ORDER_TOPIC_CONFIG": {"TopicA": "broker-a:8"}, "größer": {"€": "\n"}}),
    "settings": {"warmUpMillis": "45000"},
    "intents": IntentTable.of([Intent(IntentKind.WIPE_WRITE_PERM, BrokerKey("c", "broker-a"), "caller", 7, "why")]),
}


def replace(db: Database, table: DurableTable[Any], content: object) -> None:
    asyncio.run(db.replace(table, content))


def file_of(folder: Path) -> Path:
    return folder / DATABASE_FILE


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of each file, but for SQLite's index of the log, which it makes again."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.suffix != ".db-shm"}


def refusal(folder: Path) -> str:
    """Why a database is not opened: one line with a path and a remedy. All files are left as they are."""
    before = files_in(folder)
    with pytest.raises(DataDirError) as raised:
        Database(folder)
    text = str(raised.value)
    assert text.startswith(f"{folder}/")
    assert any(remedy in text for remedy in REMEDIES), text
    assert len(text.splitlines()) == 1
    after = files_in(folder)
    assert after | before == after
    assert not any(after[name] for name in after.keys() - before.keys())
    return text


@contextmanager
def no_room(folder: Path) -> Iterator[None]:
    """No file may grow beyond the size that the log has now: SQLite gets an error for each write."""
    log = folder / f"{DATABASE_FILE}-wal"
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size if log.exists() else 0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for another program's lock."""
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.0)


# What was taken is there.


@settings(max_examples=examples(25))
@given(data=st.data())
def test_all_that_was_replaced_is_there_after_any_number_of_restarts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("database")
    model = dict(EMPTY)
    changes = st.lists(
        st.sampled_from(TABLES).flatmap(lambda table: st.tuples(st.just(table), CONTENTS[table.name])), max_size=4
    )
    for part in data.draw(st.lists(changes, min_size=1, max_size=3)):
        with opened(folder) as db:
            assert stored(db) == model
            for table, content in part:
                replace(db, table, content)
                model[table.name] = content
    with opened(folder) as db:
        assert stored(db) == model


def test_a_write_returns_its_result_and_makes_all_of_it_or_nothing(tmp_path: Path) -> None:
    def half(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM durable")
        raise LookupError

    with opened(tmp_path) as db:
        replace(db, SETTINGS, {"a": "1"})
        assert asyncio.run(db.write(lambda connection: connection.execute("SELECT 7").fetchone()[0])) == 7
        with pytest.raises(LookupError):
            asyncio.run(db.write(half))
        assert db.load(SETTINGS) == {"a": "1"}
        assert db.problem is None
        replace(db, SETTINGS, {"a": "2"})
        assert db.load(SETTINGS) == {"a": "2"}


def test_epochs_rise_although_the_clock_steps_back(tmp_path: Path) -> None:
    epochs = []
    for millis in (5_000, 4_000, 4_000, 10_000_000_000_000, 0):
        with opened(tmp_path) as db:
            epochs.append(db.next_epoch(millis))
    assert epochs == sorted(set(epochs))
    assert epochs[0].startswith("000000000005000-")
    assert epochs[-1].startswith("010000000000001-")


@pytest.mark.parametrize("name", ["with space", "a?mode=ro#b", "100%25", "größer", os.fsdecode(b"\xff")])
def test_the_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    with opened(folder) as db:
        replace(db, SETTINGS, {"a": "1"})
        assert asyncio.run(db.read(lambda connection: connection.execute("SELECT count(*) FROM durable").fetchone()))
    assert [file.name for file in folder.iterdir()] == [DATABASE_FILE]
    with opened(folder) as db:
        assert db.load(SETTINGS) == {"a": "1"}


async def test_reads_go_on_while_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    db = Database(tmp_path)
    await db.replace(LATER, {"a": "1"})
    async with busy(db):
        assert await db.read(lambda connection: connection.execute("SELECT count(*) FROM durable").fetchone()) == (1,)
    await db.close(CLOSE_SECONDS)


def test_reads_change_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
        asyncio.run(db.read(lambda connection: connection.execute("DELETE FROM durable")))


async def test_a_disk_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    db = Database(tmp_path)
    async with busy(db):
        with capture_logs() as logs:
            await db.close(0.0)
    assert [log["event"] for log in logs] == ["database_not_closed"]
    eventually(lambda: [file.name for file in tmp_path.iterdir()] == [DATABASE_FILE])


async def test_a_commit_that_hangs_is_a_problem_until_it_ends(tmp_path: Path) -> None:
    clock, seen = VirtualClock(), list[str | None]()
    db = Database(tmp_path, clock.monotonic)

    async def sleep(_: float) -> None:
        seen.append(db.problem)
        if len(seen) == 4:
            raise asyncio.CancelledError
        clock.advance(HANG_SECONDS / 2)

    with capture_logs() as logs:
        async with busy(db):
            with pytest.raises(asyncio.CancelledError):
                await db.watch(sleep)
    assert [*seen, db.problem] == [None, None, None, "a commit takes longer than 10 s", None]
    assert [log["event"] for log in logs] == ["database_refuses_writes", "database_takes_writes"]
    await db.close(CLOSE_SECONDS)


# What was refused is not there.


async def watched(db: Database, on_pause: Callable[[int], None]) -> int:
    """Runs the watch until there is no problem, without a pause; returns the tries that it took."""
    pauses = 0

    async def sleep(seconds: float) -> None:
        nonlocal pauses
        assert seconds == PROBE_SECONDS
        if db.problem is None:
            raise asyncio.CancelledError
        on_pause(pauses)
        pauses += 1
        assert pauses < 10

    with pytest.raises(asyncio.CancelledError):
        await db.watch(sleep)
    return pauses


@pytest.mark.parametrize(
    ("refusing", "problem"),
    [(no_room, "disk I/O error"), (held_by_another, "database is locked")],
    ids=["no room", "locked"],
)
@pytest.mark.usefixtures("patience")
def test_a_refused_change_is_not_made_and_the_problem_ends_with_its_cause(
    tmp_path: Path, refusing: Callable[[Path], Any], problem: str
) -> None:
    with opened(tmp_path) as db, capture_logs() as logs, ExitStack() as cause:
        replace(db, SETTINGS, {"a": "1"})
        before = stored(db)
        cause.enter_context(refusing(tmp_path))
        for table in TABLES:
            with refuses(Reason.NOT_DURABLE, match=problem):
                replace(db, table, EXAMPLES[table.name])
        assert db.problem == problem
        assert stored(db) == before
        tries = asyncio.run(watched(db, lambda number: cause.close() if number == 3 else None))
        assert tries == 4
        assert stored(db) == before
        replace(db, SETTINGS, {"a": "2"})
    with opened(tmp_path) as db:
        assert db.load(SETTINGS) == {"a": "2"}
        assert stored(db) == {**before, "settings": {"a": "2"}}
    path = str(file_of(tmp_path))
    assert logs == [
        {"event": "database_refuses_writes", "file": path, "problem": problem, "log_level": "error"},
        {"event": "database_takes_writes", "file": path, "log_level": "info"},
    ]


async def test_a_change_waits_for_another_program_that_is_done_soon(tmp_path: Path) -> None:
    db = Database(tmp_path)
    with held_by_another(tmp_path) as other:
        other.execute("PRAGMA user_version = 1")
        writing = asyncio.create_task(db.replace(LATER, {"a": "1"}))
        await asyncio.sleep(0)
        other.execute("COMMIT")
    await writing
    assert (db.problem, db.load(LATER)) == (None, {"a": "1"})
    await db.close(CLOSE_SECONDS)


# A first start.


def test_a_first_start_imports_kv_config_json_and_a_later_one_does_not(tmp_path: Path) -> None:
    file = tmp_path / "kvConfig.json"
    content = json.dumps({"configTable": {"ns": {"key": "value"}}})
    file.write_text(content)
    with capture_logs() as logs, opened(tmp_path) as db:
        assert db.load(KV_CONFIG).namespaces == {"ns": {"key": "value"}}
        assert file.read_text() == content
        replace(db, KV_CONFIG, KvConfigTable.of({}))
        replace(db, SETTINGS, {"a": "1"})
    with capture_logs() as later, opened(tmp_path) as db:
        assert db.load(KV_CONFIG).namespaces == {}
        assert db.load(SETTINGS) == {"a": "1"}
    assert logs == [{"event": "kv_config_imported", "file": str(file), "keys": 1, "log_level": "info"}]
    assert later == []
    assert file.read_text() == content


def test_a_broken_kv_config_json_refuses_the_start_and_makes_no_database(tmp_path: Path) -> None:
    file = tmp_path / "kvConfig.json"
    file.write_text("{")
    with pytest.raises(DataDirError, match=r"kvConfig\.json is not JSON in UTF-8; correct it, or move it away"):
        Database(tmp_path)
    assert files_in(tmp_path) == {"kvConfig.json": b"{"}


def test_what_a_killed_first_start_left_behind_does_not_stop_the_next(tmp_path: Path) -> None:
    for end in ("", "-journal", "-wal", "-shm"):
        (tmp_path / f"{DATABASE_FILE}.new{end}").write_bytes(b"x" * 5_000)
    with opened(tmp_path) as db:
        assert stored(db) == EMPTY
    assert [file.name for file in tmp_path.iterdir()] == [DATABASE_FILE]


def test_a_log_without_its_database_is_refused_unless_it_is_empty(tmp_path: Path) -> None:
    log = tmp_path / f"{DATABASE_FILE}-wal"
    log.write_bytes(b"x")
    assert "is missing, but" in refusal(tmp_path)
    log.write_bytes(b"")
    with opened(tmp_path) as db:
        assert db.load(SETTINGS) == {}


def test_a_link_to_a_disk_that_is_not_there_is_refused_and_kept(tmp_path: Path) -> None:
    file_of(tmp_path).symlink_to(tmp_path / "unmounted" / DATABASE_FILE)
    assert "No such file or directory" in refusal(tmp_path)
    assert file_of(tmp_path).is_symlink()


# Damage.


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the same content: closed as at a shutdown, and killed with changes in the log."""
    closed, killed = tmp_path_factory.mktemp("closed"), tmp_path_factory.mktemp("killed")
    rows = [("e", n, n, "c", "x", "", "s" * 50, 0, 0, "\nb\n", "\nt\n", 60) for n in range(200)]
    with opened(closed) as db:
        db.next_epoch(1_000)
        replace(db, LATER, MANY)
        add = "INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        asyncio.run(db.write(lambda connection: connection.executemany(add, rows)))
        replace(db, INTENTS, EXAMPLES["intents"])
    with opened(closed) as db:
        replace(db, KV_CONFIG, EXAMPLES["kv_config"])
        replace(db, SETTINGS, EXAMPLES["settings"])
        for file in closed.iterdir():
            shutil.copy(file, killed)
    (killed / f"{DATABASE_FILE}-shm").unlink()
    return {"closed": closed, "killed": killed}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the many examples of a property."""
    return tmp_path_factory.mktemp("damaged")


def put(source: Path, folder: Path, content: bytes) -> None:
    """Puts copies of the files of a folder into another, and another content into the database."""
    for file in folder.iterdir():
        file.unlink()
    for file in source.iterdir():
        shutil.copyfile(file, folder / file.name)
    file_of(folder).write_bytes(content)


def is_refused(folder: Path, *acknowledged: dict[str, object]) -> bool:
    """Whether a start on a damaged file is refused. If it is not, the tables are as they were after some commit."""
    try:
        db = Database(folder)
    except DataDirError:
        return True
    try:
        assert stored(db) in acknowledged
        assert db.load(LATER) == MANY
        assert db.next_epoch(0).startswith("000000000001001-")
    finally:
        asyncio.run(db.close(CLOSE_SECONDS))
    return False


Damage = Callable[[bytearray, random.Random], None]


def cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def zero(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    length = rng.randrange(1, 5_000)
    content[start : start + length] = bytes(len(content[start : start + length]))


def garble(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    length = len(content[start : start + rng.randrange(1, 5_000)])
    content[start : start + length] = rng.randbytes(length)


def flip(content: bytearray, rng: random.Random) -> None:
    used = [place for place, byte in enumerate(content) if byte]
    content[rng.choice(used)] ^= 1 << rng.randrange(8)


@pytest.mark.parametrize("end", ["closed", "killed", "killed, its log"])
@pytest.mark.parametrize("damage", [cut, zero, garble, flip])
def test_a_damaged_database_is_refused_as_it_is_or_loads_what_was_stored(
    whole: dict[str, Path], scratch: Path, end: str, damage: Damage
) -> None:
    """SQLite takes damage to the log for a crash within a write: what was committed before it is loaded."""
    folder, _, log = end.partition(", ")
    contents = [{"intents"}, {"intents", "kv_config"}, EXAMPLES] if log else [EXAMPLES]
    tables = [{name: (EXAMPLES if name in held else EMPTY)[name] for name in EXAMPLES} for held in contents]
    for seed in range(examples(30)):
        put(whole[folder], scratch, file_of(whole[folder]).read_bytes())
        file = scratch / f"{DATABASE_FILE}-wal" if log else file_of(scratch)
        content = bytearray(file.read_bytes())
        damage(content, random.Random(seed))
        file.write_bytes(content)
        before = files_in(scratch)
        if is_refused(scratch, *tables):
            assert files_in(scratch) | before == files_in(scratch), seed
            refusal(scratch)


def test_damage_to_the_journal_is_refused_though_no_start_reads_it(whole: dict[str, Path], scratch: Path) -> None:
    content = bytearray(file_of(whole["closed"]).read_bytes())
    page = content.index(b"s" * 50) // 4_096 * 4_096
    content[page : page + 4_096] = bytes(4_096)
    put(whole["closed"], scratch, bytes(content))
    assert "is damaged: " in refusal(scratch)


@pytest.mark.parametrize("place", [18, 19, 60, 63, 68, 71])
def test_a_flipped_bit_in_the_header_is_refused(whole: dict[str, Path], scratch: Path, place: int) -> None:
    for bit in range(8):
        content = bytearray(file_of(whole["closed"]).read_bytes())
        content[place] ^= 1 << bit
        put(whole["closed"], scratch, bytes(content))
        assert "no database of a name server" in (why := refusal(scratch)) or "of a newer version" in why


NO_DATABASE: dict[str, bytes] = {
    "empty": b"",
    "half a header": b"SQLite format 3\0",
    "another format of SQLite": b"SQLite format 4\0" + bytes(8_192),
}


@pytest.mark.parametrize("content", NO_DATABASE.values(), ids=NO_DATABASE)
@pytest.mark.parametrize("log", [False, True], ids=["closed", "killed"])
def test_a_file_that_is_no_database_is_refused_and_kept_with_its_log(
    whole: dict[str, Path], scratch: Path, content: bytes, log: bool
) -> None:
    put(whole["killed" if log else "closed"], scratch, content)
    assert "is no database of a name server, or damaged" in refusal(scratch)


@pytest.mark.parametrize(
    "statement", ["application_id = 1", f"application_id = {APPLICATION_ID}", f"user_version = {FORMAT}"]
)
def test_a_database_of_another_program_is_refused(tmp_path: Path, statement: str) -> None:
    with closing(sqlite3.connect(file_of(tmp_path))) as other:
        other.execute("CREATE TABLE durable (name, key, value, checksum)")
        other.execute(f"PRAGMA {statement}")
    assert "is no database of a name server, or damaged" in refusal(tmp_path)


CHANGED_BY_HAND = {
    f"PRAGMA user_version = {FORMAT + 1}": f"format {FORMAT + 1}, of a newer version; this one reads format {FORMAT}",
    "DROP TABLE journal": "its tables are not those of format",
    "DROP TABLE durable": "its tables are not those of format",
    "ALTER TABLE journal RENAME COLUMN topics TO topicz": "its tables are not those of format",
    "ALTER TABLE durable ADD COLUMN more": "its tables are not those of format",
    "UPDATE durable SET value = '0'": "table settings: the row 'warmUpMillis' does not match its checksum",
}


@pytest.mark.parametrize(("statement", "problem"), CHANGED_BY_HAND.items(), ids=CHANGED_BY_HAND)
def test_a_database_that_was_changed_by_hand_is_refused(tmp_path: Path, statement: str, problem: str) -> None:
    with opened(tmp_path) as db:
        replace(db, SETTINGS, {"warmUpMillis": "45000"})
    with closing(sqlite3.connect(file_of(tmp_path))) as shell, shell:
        shell.execute(statement)
    assert problem in refusal(tmp_path)


def test_rows_that_this_version_cannot_read_are_refused_by_their_table(tmp_path: Path) -> None:
    with opened(tmp_path) as db:
        replace(db, INTENTS._replace(encode=lambda _: {"key": "{}"}), None)
        replace(db, LATER._replace(name="epoch"), {"epoch": "x"})
        for load in (lambda: db.load(INTENTS), lambda: db.next_epoch(1)):
            with pytest.raises(DataDirError, match=f"^{file_of(tmp_path)}: table (intents|epoch).*; {REMEDIES[0]}"):
                load()


# Files that cannot be used.


def test_a_database_that_another_program_holds_is_refused(tmp_path: Path, patience: None) -> None:
    with opened(tmp_path):
        pass
    with held_by_another(tmp_path):
        assert "database is locked: end the other program" in refusal(tmp_path)
    with closing(sqlite3.connect(file_of(tmp_path))) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        assert "database is locked: end the other program" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(Path.mkdir, "Is a directory: move away"), (os.mkfifo, "Illegal seek: check the disk")],
    ids=["folder", "pipe"],
)
def test_something_else_in_the_place_of_the_file_is_refused(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    make(file_of(tmp_path))
    with pytest.raises(DataDirError) as raised:
        Database(tmp_path)
    assert str(raised.value).startswith(f"{file_of(tmp_path)}: {reason}")


def test_a_first_start_on_a_full_disk_is_refused_and_can_be_repeated(tmp_path: Path) -> None:
    with no_room(tmp_path):
        assert "disk I/O error" in refusal(tmp_path)
    with opened(tmp_path) as db:
        assert db.load(SETTINGS) == {}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of this machine reaches, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


@contextmanager
def rights_of_others() -> Iterator[None]:
    """Root may do everything, so it is somebody else in the meantime."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("names", "mode"),
    [
        ((), 0o555),
        ((), 0o000),
        ((DATABASE_FILE,), 0o000),
        ((DATABASE_FILE,), 0o444),
        ((DATABASE_FILE, "."), 0o555),
        ((f"{DATABASE_FILE}-wal",), 0o000),
        ((f"{DATABASE_FILE}-wal",), 0o444),
    ],
    ids=lambda value: f"{value:o}" if isinstance(value, int) else " ".join(value) or "first start",
)
def test_missing_rights_are_refused_with_the_right_to_give(
    whole: dict[str, Path], open_folder: Path, names: tuple[str, ...], mode: int
) -> None:
    if names:
        put(whole["killed"], open_folder, file_of(whole["killed"]).read_bytes())
    for file in open_folder.iterdir():
        file.chmod(0o666)
    for name in names or (".",):
        (open_folder / name).chmod(mode)
    with rights_of_others(), pytest.raises(DataDirError) as raised:
        Database(open_folder)
    assert str(raised.value).startswith(f"{open_folder}/")
    assert "give this process the right to" in str(raised.value)
