"""Damaged files: nothing is made up. A database is refused, a snapshot is a cold start, topics have a copy."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from structlog.testing import capture_logs

from broker_agent.errors import StartError
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import Database
from namesrv.storage.tables import TABLES
from tests.faults.fleet.operated_server import DURABLE, TIMEOUT, OperatedServer
from tests.faults.owned_files import CONTENTS, OWNED, number_of
from tests.support.fakes.rot import rot, skip_without_checksums
from tests.support.programs.processes import BIN, ended

SEEDS = int(os.environ.get("FAULTS_DAMAGES", "10"))
"""Damages of each kind of each file; 1,000 in the long profile."""
STEPS = 3
"""What files hold when they are damaged: the number 3, and the copy of the topics 2."""

Damage = Callable[[random.Random, bytes], bytes]


def flipped(rate: float) -> Damage:
    """Flips about this share of all bits, and one at least."""

    def damage(rng: random.Random, content: bytes) -> bytes:
        bits = len(content) * 8
        changed = bytearray(content)
        count = max(1, round(bits * rate * rng.uniform(0.5, 1.5)))
        for bit in rng.sample(range(bits), min(count, bits)):
            changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    return damage


def zeroed(rng: random.Random, content: bytes) -> bytes:
    """Blocks that were never written after a machine crashed."""
    begin = rng.randrange(len(content))
    return content[:begin] + bytes(len(content) - begin)


DAMAGES: dict[str, Damage] = {
    "bits flipped, 1 in 1,000": flipped(1e-3),
    "bits flipped, 1 in 10,000": flipped(1e-4),
    "bits flipped, 1 in 100,000": flipped(1e-5),
    "cut off": lambda rng, content: content[: rng.randrange(len(content))],
    "zeroed": zeroed,
    "empty": lambda _rng, _content: b"",
    "something else": lambda rng, _content: rng.randbytes(500),
    "something else in JSON": lambda _rng, _content: b'{"name": "elsewhere", "version": 7}',
    "doubled": lambda _rng, content: content * 2,
}


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    """A folder in memory, if that can be."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
        yield Path(folder)


def copied(whole: Path) -> Path:
    """A copy of a folder, checksums included."""
    folder = whole.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


# The database.

ACKNOWLEDGED = [(0,) * len(TABLES)] + [
    tuple(step + (place <= changed) for place in range(len(TABLES)))
    for step in range(STEPS)
    for changed in range(len(TABLES))
]
"""All states of the tables that were acknowledged, as numbers, oldest first."""


@pytest.fixture(scope="module")
def databases(scratch: Path) -> dict[str, Path]:
    """The files of three databases with the same content, by how they were left."""
    folders = {name: scratch / name for name in ("closed", "killed", "killed after a checkpoint")}
    for folder in folders.values():
        folder.mkdir()
    used = folders["closed"]

    def leave(name: str) -> None:
        for end in ("", "-wal"):
            shutil.copy(used / f"namesrv.db{end}", folders[name])

    async def change() -> None:
        database = Database(used)
        for step in range(1, STEPS + 1):
            for table in TABLES:
                await database.replace(table, CONTENTS[table.name](step))
        leave("killed")
        with closing(sqlite3.connect(used / "namesrv.db")) as another:
            another.execute("PRAGMA wal_checkpoint")
        leave("killed after a checkpoint")
        await database.close(10)

    asyncio.run(change())
    return folders


def numbers_in(folder: Path) -> tuple[int, ...] | None:
    """What the tables of a database hold; None if the start is refused, which must change nothing."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    try:
        database = Database(folder)
    except DataDirError as error:
        refusal = str(error)
    else:
        try:
            return tuple(number_of(database, table) for table in TABLES)
        finally:
            asyncio.run(database.close(10))
    assert refusal.startswith(str(folder / "namesrv.db"))
    assert "restore a backup" in refusal
    assert {path: path.read_bytes() for path in before} == before
    return None


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_database_is_refused_as_it_is_or_holds_all(databases: dict[str, Path], damage: Damage) -> None:
    """Pages that the log has, too, are not missed."""
    for whole in databases.values():
        for seed in range(SEEDS):
            file = (folder := copied(whole)) / "namesrv.db"
            file.write_bytes(damage(random.Random(seed), file.read_bytes()))
            assert numbers_in(folder) in (None, ACKNOWLEDGED[-1]), f"seed {seed}"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_log_is_refused_or_leaves_an_earlier_state(databases: dict[str, Path], damage: Damage) -> None:
    """SQLite cannot tell damage from a crash in the middle of a write: the log ends where it is damaged."""
    for name in ("killed", "killed after a checkpoint"):
        for seed in range(SEEDS):
            file = (folder := copied(databases[name])) / "namesrv.db-wal"
            file.write_bytes(damage(random.Random(seed), file.read_bytes()))
            assert numbers_in(folder) in (None, *ACKNOWLEDGED), f"{name}, seed {seed}"


def test_a_server_on_a_damaged_database_says_so_and_does_not_start(tmp_path: Path) -> None:
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client:
        server.register(client)
        for table in DURABLE:
            server.change(client, table)
        assert process.terminate() == 0
    file = server.data_dir / "namesrv.db"
    content = file.read_bytes()
    file.write_bytes(damaged := content[: len(content) // 2])
    done = ended([str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(server.data_dir)])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert f"{file} is damaged: " in done.stderr
    assert "move it and its -wal away; then restore a backup" in done.stderr
    assert file.read_bytes() == damaged
    file.write_bytes(content)
    with server.start() as process, process.connect() as client:
        server.check(client)


# The other files.


@pytest.fixture(scope="module")
def whole(scratch: Path) -> Path:
    """A folder with each other kind of file after some steps."""
    folder = scratch / "whole"
    folder.mkdir()
    for _ in range(STEPS):
        for kind in ("routes.snapshot", "topics.json", "route cache"):
            OWNED[kind](folder)
    return folder


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize(("kind", "number"), [("routes.snapshot", 1), ("topics.json", STEPS), ("route cache", 1)])
def test_a_damaged_file_gives_way_to_its_copy_or_to_nothing(
    whole: Path, kind: str, number: int, damage: Damage
) -> None:
    """A step counts on from what it finds: from the copy of the topics, and otherwise from nothing."""
    for seed in range(SEEDS):
        folder = copied(whole)
        file = next(folder.glob("*.route")) if kind == "route cache" else folder / kind
        if kind == "topics.json":
            skip_without_checksums(file)
        rot(file, damage(random.Random(seed), file.read_bytes()))
        with capture_logs():
            assert OWNED[kind](folder) == number, f"seed {seed}"


def test_topics_whose_copy_is_damaged_as_well_are_not_made_up(whole: Path) -> None:
    for seed in range(SEEDS):
        folder, rng = copied(whole), random.Random(seed)
        for file in (folder / "topics.json", folder / "topics.json.bak"):
            skip_without_checksums(file)
            rot(file, flipped(1e-3)(rng, file.read_bytes()))
        with capture_logs(), pytest.raises(StartError, match=r"topics\.json.*does not match its checksum"):
            OWNED["topics.json"](folder)


def test_a_damaged_copy_beside_good_topics_is_never_looked_at(whole: Path) -> None:
    folder = copied(whole)
    rot(folder / "topics.json.bak", b"garbage")
    assert OWNED["topics.json"](folder) == STEPS + 1


def test_topics_of_a_newer_version_give_way_to_what_can_be_read(whole: Path) -> None:
    folder = copied(whole)
    (folder / "topics.json").write_bytes(newer := b'{"version": 2}')
    with capture_logs() as logs:
        assert OWNED["topics.json"](folder) == STEPS
    assert [log["event"] for log in logs if log["log_level"] == "warning"]
    assert (folder / "topics.json.broken").read_bytes() == newer, "the newer version will need it"


def test_topics_without_a_checksum_are_taken(whole: Path) -> None:
    folder = copied(whole)
    content = (folder / "topics.json").read_bytes()
    (folder / "topics.json").unlink()
    (folder / "topics.json").write_bytes(content)
    assert OWNED["topics.json"](folder) == STEPS + 1


def test_a_server_on_a_damaged_snapshot_starts_without_routes(tmp_path: Path) -> None:
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client:
        server.register(client)
        for table in DURABLE:
            server.change(client, table)
        route = client.route()
        assert process.terminate() == 0
    file = server.data_dir / "routes.snapshot"
    rot(file, flipped(1e-4)(random.Random(1), file.read_bytes()))
    with server.start() as process, process.connect() as client:
        assert [line["problem"] for line in process.events("snapshot_not_loaded")]
        assert client.route() is None
        server.check(client)
        (intent,) = client.admin.ListIntents(pb.ListIntentsRequest(), timeout=TIMEOUT).intents
        assert intent.comment == str(server.acknowledged["intents"])
        server.register(client)
        back = client.route()
        assert back is not None
        assert route is not None
        assert back.queue_datas == route.queue_datas, "the intents are in force"
