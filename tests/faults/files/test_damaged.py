"""Damaged files: a checksum refuses them, what was before is taken, the program starts, no number is made up."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_agent.errors import StartError
from namesrv.storage.data_dir import DataDirError
from tests.faults.fleet.operated_server import DURABLE, OperatedServer
from tests.faults.owned_files import NEWER, OWNED, WITH_COPY
from tests.support.fakes.rot import rot, skip_without_checksums

SEEDS = int(os.environ.get("FAULTS_DAMAGES", "10"))
"""Damages of each kind of each file; 1,000 in the long profile."""
STEPS = 3
"""What files hold when they are damaged: the number 3, and their copies 2."""

Damage = Callable[[random.Random, bytes], bytes]


def flipped(rate: float) -> Damage:
    """Flips each bit with a probability, and one at least."""

    def damage(rng: random.Random, content: bytes) -> bytes:
        bits = len(content) * 8
        changed = bytearray(content)
        count = max(1, sum(rng.random() < rate for _ in range(bits)))
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
def whole() -> Iterator[Path]:
    """A folder with each kind of file after some steps."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as scratch:
        folder = Path(scratch) / "whole"
        folder.mkdir()
        for _ in range(STEPS):
            assert len({step(folder) for step in OWNED.values()}) == 1
        skip_without_checksums(folder / "epoch")
        yield folder


def copied(whole: Path) -> Path:
    """A copy of the folder, checksums included."""
    folder = whole.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    return folder


def file_of(kind: str, folder: Path) -> Path:
    return next(folder.glob("*.route")) if kind == "route cache" else folder / kind


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("kind", [*WITH_COPY, "route cache"])
def test_a_damaged_file_gives_way_to_what_was_there_before(whole: Path, kind: str, damage: Damage) -> None:
    for seed in range(SEEDS):
        folder = copied(whole)
        file = file_of(kind, folder)
        rot(file, damage(random.Random(seed), file.read_bytes()))
        with capture_logs():
            number = OWNED[kind](folder)
        assert number == (STEPS if kind in WITH_COPY else 1), f"seed {seed}"


@pytest.mark.parametrize("kind", WITH_COPY)
def test_with_a_damaged_copy_as_well_nothing_is_made_up(whole: Path, kind: str) -> None:
    """Intents of operators and which topics a broker has cannot be guessed; routes can be learnt again."""
    for seed in range(SEEDS):
        folder, rng = copied(whole), random.Random(seed)
        for file in (folder / kind, folder / f"{kind}.bak"):
            rot(file, flipped(1e-3)(rng, file.read_bytes()))
        with capture_logs():
            if kind == "routes.snapshot":
                assert OWNED[kind](folder) == 1, "a cold start"
            else:
                with pytest.raises((DataDirError, StartError), match=rf"{kind}.*does not match its checksum"):
                    OWNED[kind](folder)


def test_a_damaged_copy_beside_a_good_file_is_never_looked_at(whole: Path) -> None:
    folder = copied(whole)
    for kind in WITH_COPY:
        rot(folder / f"{kind}.bak", b"garbage")
        assert OWNED[kind](folder) == STEPS + 1


@pytest.mark.parametrize("kind", WITH_COPY)
def test_a_file_of_a_newer_version_gives_way_to_one_that_can_be_read(whole: Path, kind: str) -> None:
    folder = copied(whole)
    (folder / kind).write_bytes(NEWER[kind])
    with capture_logs() as logs:
        assert OWNED[kind](folder) == STEPS
    assert [log["event"] for log in logs if log["log_level"] == "warning"]
    assert (folder / f"{kind}.broken").read_bytes() == NEWER[kind], "whoever goes back to the newer version has it"


def test_files_of_older_versions_which_had_no_checksums_are_taken(whole: Path) -> None:
    folder = copied(whole)
    for kind in WITH_COPY:
        content = (folder / kind).read_bytes()
        (folder / kind).unlink()
        (folder / kind).write_bytes(content)
        assert OWNED[kind](folder) == STEPS + 1


@pytest.mark.parametrize("file", ["kvConfig.json", "intents.json", "namesrv_config.json", "epoch", "routes.snapshot"])
def test_a_server_on_a_damaged_file_starts_and_serves_no_wrong_route(tmp_path: Path, file: str) -> None:
    server = OperatedServer(tmp_path)
    with server.start() as process, process.connect() as client:
        server.register(client)
        for _ in range(2):
            for changed in DURABLE:
                server.change(client, changed)
        held, route = server.held(client), client.route()
        assert process.terminate() == 0
    with server.start() as process, process.connect() as client:
        server.register(client)  # so that there is another snapshot, and a copy
        assert process.terminate() == 0
    path = server.data_dir / file
    rot(path, flipped(1e-4)(random.Random(file), path.read_bytes()))
    with server.start() as process, process.connect() as client:
        assert [line["file"] for line in process.events("restored_from_copy")] == [str(path)]
        before = {name: number - (len(DURABLE) if name == file else 0) for name, number in held.items()}
        assert server.held(client) == before
        found = client.route()
        assert route is not None
        assert found is not None
        assert [data.broker_addrs for data in found.broker_datas] == [data.broker_addrs for data in route.broker_datas]
        assert found.queue_datas == route.queue_datas
