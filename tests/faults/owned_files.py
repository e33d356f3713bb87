"""Each kind of file that a name server, an agent or a client owns, as something that counts up on disk.

A step loads what the file holds, a number, saves the next one and returns it. Whatever holds two numbers is torn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from broker_agent.topics.storage import TopicsFile
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from namesrv.core.address_claims import AddressClaim
from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, IntentTable, KvConfigTable, LiveKey
from namesrv.storage.address_claims_file import AddressClaimsFile
from namesrv.storage.audit_file import AUDIT_FILE, RotatingFile
from namesrv.storage.config_file import ConfigFile
from namesrv.storage.epoch_file import next_epoch
from namesrv.storage.intents_file import IntentsFile
from namesrv.storage.kv_config_file import KvConfigFile
from namesrv.storage.snapshot_file import SnapshotFile
from route_client.disk_cache import DiskCache
from route_client.route import QueueData, TopicRoute

ITEMS = 40
"""Pieces of a content that all tell its number."""
AUDIT_BYTES, AUDIT_FILES = 40, 3
"""Small, so that every few lines the files rotate."""

Step = Callable[[Path], int]


def _held(numbers: Collection[int]) -> int:
    assert len(set(numbers)) <= 1, f"torn: holds {sorted(set(numbers))}"
    return next(iter(numbers), 0)


def _kv_config(folder: Path) -> int:
    file = KvConfigFile(folder)
    number = _held([int(value) for value in file.load().entries("ns").values()]) + 1
    file.save(KvConfigTable.of({"ns": {f"key-{item}": f"{number}" for item in range(ITEMS)}}))
    return number


def _intents(folder: Path) -> int:
    file = IntentsFile(folder)
    number = _held([intent.since_millis for intent in file.load().intents.values()]) + 1
    keys = (HoldKey(f"topic-{item}", None) for item in range(ITEMS))
    file.save(IntentTable.of(Intent(IntentKind.TOPIC_HOLD, key, "ops", number) for key in keys))
    return number


def _config(folder: Path) -> int:
    file = ConfigFile(folder)
    number = _held([int(text) for text in file.load().values()]) + 1
    file.save({f"key-{item}": f"{number}" for item in range(ITEMS)})
    return number


def _address_claims(folder: Path) -> int:
    file = AddressClaimsFile(folder)
    number = _held([claim.since_millis for claim in file.load()]) + 1
    broker = BrokerKey("cluster", "broker-a")
    keys = (LiveKey("cluster", f"10.0.0.{item}:10911") for item in range(ITEMS))
    file.save([AddressClaim(key, broker, 0, number, number) for key in keys])
    return number


def _epoch(folder: Path) -> int:
    return int(next_epoch(folder, 0).partition("-")[0])


def _snapshot(folder: Path) -> int:
    file = SnapshotFile(folder)
    number = _held([int(message) for message in file.load() or []]) + 1
    with file.open_writer() as writer:
        for _ in range(4):
            writer.append(f"{number}".encode().rjust(5_000))
        writer.commit()
    return number


def _audit(folder: Path) -> int:
    """Lines that are whole count up without a gap; a kill may leave half a line, which the next start ends."""
    files = [folder / f"{AUDIT_FILE}{suffix}" for suffix in (*(f".{n}" for n in range(AUDIT_FILES - 1, 0, -1)), "")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    numbers = [int(line[:-1]) for line in lines if line.endswith(".")]
    assert numbers == list(range(numbers[0], numbers[-1] + 1) if numbers else ()), f"lines are missing: {lines}"
    number = (numbers[-1] if numbers else 0) + 1
    file = RotatingFile(folder / AUDIT_FILE, AUDIT_BYTES, AUDIT_FILES)
    file.append(f"{number:08}.\n".encode())
    file.close()
    return number


def _topics(folder: Path) -> int:
    file = TopicsFile(folder / "topics.json")
    table = file.load()
    number = _held([topic.read_queue_nums for topic in table.topics]) + 1 if table else 1
    assert table is None or table.data_version.counter == number - 1
    topics = (TopicConfig(f"topic-{item}", number, number, 6) for item in range(ITEMS))
    file.save(TopicConfigTable(DataVersion(0, number), tuple(topics)))
    return number


def _route_cache(folder: Path) -> int:
    """Starts at one again after a file that cannot be trusted: a client asks as if it had none."""
    cache = DiskCache(folder, "fleet")
    route = cache.load("topic")
    number = _held([queue.read_queue_nums for queue in route.queue_datas]) + 1 if route else 1
    queues = (QueueData("cluster", f"broker-{item:02}", number, number, 6) for item in range(ITEMS))
    cache.save("topic", TopicRoute(tuple(queues)))
    assert cache.failed_writes == 0
    return number


OWNED: dict[str, Step] = {
    "epoch": _epoch,
    "kvConfig.json": _kv_config,
    "intents.json": _intents,
    "namesrv_config.json": _config,
    "address_claims.json": _address_claims,
    "routes.snapshot": _snapshot,
    "audit.jsonl": _audit,
    "topics.json": _topics,
    "route cache": _route_cache,
}
"""The kinds, by the name of the file or what it is."""

WITH_COPY = (
    "epoch",
    "kvConfig.json",
    "intents.json",
    "namesrv_config.json",
    "address_claims.json",
    "routes.snapshot",
    "topics.json",
)
"""Those that keep what they held before as ``<name>.bak``."""

NEWER = {
    "intents.json": b'{"version": 2, "intents": []}',
    "namesrv_config.json": b'{"settings": {"version": 2}}',
    "kvConfig.json": b'{"version": 2, "tables": {}}',
    "epoch": b"epoch 2: 00000",
    "address_claims.json": b'{"version": 2, "claims": []}',
    "routes.snapshot": b"namesrv route snapshot, format 2\n" + bytes(100),
    "topics.json": b'{"version": 2}',
}
"""As a version that is to come may write them, put there by somebody, without a checksum that counts."""
