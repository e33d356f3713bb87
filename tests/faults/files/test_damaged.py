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
from namesrv_api.v1.route_data_pb2 import TopicRouteData
from structlog.testing import capture_logs

from broker_agent.errors import StartError
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import Database
from namesrv.storage.tables import TABLES
from tests.faults.fleet.operated_server import DURABLE, OperatedServer
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


ACKNOWLEDGED = [(0,) * len(TABLES)] + [
    tuple(step + (place <= changed) for place in range(len(TABLES)))
    for step in range(STEPS)
    for changed in range(len(TABLES))
]
"""All states of the tables that were acknowledged, as numbers, oldest first."""


@pytest.fixture(scope="module")
def left() -> Iterator[Path]:
    """What programs left, in memory if that can be: a folder for each way to leave a database, and one of the rest."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as folder:
        path = Path(folder)
        for name in ("used", "killed", "checkpointed", "whole"):
            (path / name).mkdir()
        asyncio.run(leave_databases(path))
        for _ in range(STEPS):
            for kind in ("topics.json", "route cache"):
                OWNED[kind](path / "whole")
        yield path


async def leave_databases(path: Path) -> None:
    """Leaves databases with the same content: killed, and killed after a checkpoint."""
    used = path / "used"
    database = Database(used)
    for step in range(1, STEPS + 1):
        for table in TABLES:
            await database.replace(table, CONTENTS[table.name](step))
    for name in ("killed", "checkpointed"):
        if name == "checkpointed":
            with closing(sqlite3.connect(used / "namesrv.db")) as another:
                another.execute("PRAGMA wal_checkpoint")
        for file in used.glob("namesrv.db*"):
            shutil.copy(file, path / name)
        (path / name / "namesrv.db-shm").unlink()
    await database.close(10)


def copied(whole: Path) -> Path:
    """A copy of a folder, checksums included."""
    folder = whole.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


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


CASES: dict[str, tuple[str, str, Callable[[Path], object], tuple[object, ...]]] = {
    # Databases that were closed or killed: tests/unit/namesrv/storage.
    "a database, checkpointed": ("checkpointed", "namesrv.db", numbers_in, (None, ACKNOWLEDGED[-1])),
    # SQLite cannot tell damage from a crash in the middle of a write: the log ends where it is damaged.
    **{
        f"a log, {left}": (left, "namesrv.db-wal", numbers_in, (None, *ACKNOWLEDGED))
        for left in ("killed", "checkpointed")
    },
    # A step counts on from what it finds: from the copy of the topics, and otherwise from nothing.
    "topics": ("whole", "topics.json", OWNED["topics.json"], (STEPS,)),
    "a cached route": ("whole", "*.route", OWNED["route cache"], (1,)),
}
"""Each damaged file: the folder that has it, its name, its reader, and the results that are right."""


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("case", CASES)
def test_a_damaged_file_is_refused_or_gives_way_to_what_was(left: Path, case: str, damage: Damage) -> None:
    name, pattern, read, allowed = CASES[case]
    for seed in range(SEEDS):
        folder = copied(left / name)
        (file,) = folder.glob(pattern)
        if case == "topics":
            skip_without_checksums(file)
        rot(file, damage(random.Random(seed), file.read_bytes()))
        with capture_logs():
            assert read(folder) in allowed, f"seed {seed}"


def test_topics_whose_copy_is_damaged_as_well_are_not_made_up(left: Path) -> None:
    for seed in range(SEEDS):
        folder, rng = copied(left / "whole"), random.Random(seed)
        for file in (folder / "topics.json", folder / "topics.json.bak"):
            skip_without_checksums(file)
            rot(file, flipped(1e-3)(rng, file.read_bytes()))
        with capture_logs(), pytest.raises(StartError, match=r"topics\.json.*does not match its checksum"):
            OWNED["topics.json"](folder)


def used(folder: Path) -> tuple[OperatedServer, TopicRouteData | None]:
    """A server with something in each of its files, and the route that it had when it ended."""
    server = OperatedServer(folder)
    with server.start() as process, process.connect() as client:
        server.register(client)
        for table in DURABLE:
            server.change(client, table)
        route = client.route()
        assert process.terminate() == 0
    return server, route


def test_a_server_on_a_damaged_database_says_so_and_does_not_start(tmp_path: Path) -> None:
    server, _ = used(tmp_path)
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


def test_a_server_on_a_damaged_snapshot_starts_without_routes(tmp_path: Path) -> None:
    server, route = used(tmp_path)
    file = server.data_dir / "routes.snapshot"
    rot(file, flipped(1e-4)(random.Random(1), file.read_bytes()))
    with server.start() as process, process.connect() as client:
        assert [line["problem"] for line in process.events("snapshot_not_loaded")]
        assert client.route() is None
        server.check(client)
        server.register(client)
        back = client.route()
        assert back is not None
        assert route is not None
        assert back.queue_datas == route.queue_datas, "the intents are in force"
