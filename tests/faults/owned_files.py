"""Each kind of file that a name server, an agent or a client owns, as something that counts up on disk.

A step loads what the file holds, a number, saves the next one and returns it. Whatever holds two numbers is torn.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from namesrv_api.v1.route_data_pb2 import TopicRouteData

from broker_agent.topics.files import TopicsFile
from broker_agent.topics.table import DataVersion, TopicConfig, TopicConfigTable
from namesrv.core.changes import Cause, Change, KvChange
from namesrv.core.journal import JournalEntry, JournalQuery
from namesrv.core.model import HoldKey, Intent, IntentKind, IntentTable, KvConfigTable
from namesrv.storage.data_dir import SnapshotFile
from namesrv.storage.database import KV_CONFIG_FILE, Database
from namesrv.storage.journal import Journal
from namesrv.storage.tables import TABLES, DurableTable
from route_client.disk_cache import DiskCache

_DATABASE, _NEW = "namesrv.db namesrv.db-wal", "namesrv.db.new namesrv.db.new-journal"
_STEPS = {
    "fsync": f"{_DATABASE} {_NEW} routes.snapshot.tmp topics.json.tmp",
    "fsync-folder-of": "namesrv.db routes.snapshot topics.json",
    "link": "topics.json.bak.tmp",
    "open": "namesrv.db.new routes.snapshot.tmp topics.json.tmp",
    "remove": f"namesrv.db-wal {_NEW} namesrv.db.new-shm namesrv.db.new-wal routes.snapshot.tmp topics.json.bak.tmp",
    "rename": "namesrv.db routes.snapshot topics.json topics.json.bak topics.json.broken ROUTE.route",
    "truncate": "namesrv.db",
    "write": f"{_DATABASE} {_NEW} routes.snapshot.tmp topics.json.tmp ROUTE.tmp",
}
"""Each step on a file, and the files. Add a new one here."""
FAILPOINTS = [
    f"{moment} {step} {file}"
    for step, files in _STEPS.items()
    for file in files.split()
    for moment in ("before", "after", *(("half",) if step == "write" else ()))
]
"""All failpoints: what the suite passes and what it crashes at."""
CRASHED = -signal.SIGKILL
"""The exit code of a process that crashes there."""
ITEMS = 40
"""Pieces of a content that all tell its number."""

Step = Callable[[Path], int]


def _held(numbers: Collection[int]) -> int:
    assert len(set(numbers)) <= 1, f"torn: holds {sorted(set(numbers))}"
    return next(iter(numbers), 0)


# The tables of the database.

_OFFSET = 1_000_000
"""Added to a content's number, so that it is the only number of seven digits in each row."""


def _names(number: int) -> list[str]:
    """Names of the rows of a content. A change to the next one adds a row, removes one and overwrites the others."""
    return [f"{(number + item) % (2 * ITEMS)}" for item in range(ITEMS)]


def _kv_config(number: int) -> KvConfigTable:
    return KvConfigTable.of({"ns": dict.fromkeys(_names(number), f"{_OFFSET + number}")})


def _settings(number: int) -> Mapping[str, str]:
    return dict.fromkeys(_names(number), f"{_OFFSET + number}")


def _intents(number: int) -> IntentTable:
    holds = (HoldKey(name, None) for name in _names(number))
    return IntentTable.of(Intent(IntentKind.TOPIC_HOLD, key, "ops", _OFFSET + number) for key in holds)


CONTENTS: dict[str, Callable[[int], Any]] = {"kv_config": _kv_config, "settings": _settings, "intents": _intents}
"""Makes the content of a table that has a number, by the name of the table."""


def number_of(database: Database, table: DurableTable[Any]) -> int:
    """The number of the content that a table holds, which must be that content and nothing else; 0 if it is empty."""
    rows = table.encode(database.load(table))
    number = _held([int(text) - _OFFSET for row in rows.values() for text in set(re.findall(r"\b\d{7}\b", row))])
    assert rows == (table.encode(CONTENTS[table.name](number)) if rows else {}), f"{table.name} at {number}"
    return number


def leave_kv_config_of_rocketmq(folder: Path) -> None:
    """Puts content 0 of the KV configuration where a first start finds it."""
    (folder / KV_CONFIG_FILE).write_text(json.dumps({"configTable": _kv_config(0).namespaces}))


# The journal.


def journal_change(revision: int) -> Change:
    """A change whose entry can be told from those of other revisions."""
    rows = tuple(KvChange(("ns", f"key-{item}"), None, "value") for item in range(revision % 5 + 1))
    return Change(Cause("PutKvConfig", "ops", f"change {revision}"), rows, revision, _OFFSET + revision)


def last_revisions(entries: Sequence[JournalEntry]) -> dict[str, int]:
    """How far each epoch got. Entries come the oldest first, without a gap, though the oldest may have been dropped."""
    last: dict[str, int] = {}
    for entry in entries:
        revision = entry.revision
        if entry.epoch in last:
            assert revision == last[entry.epoch] + 1, f"{entry.epoch}: {revision} after {last[entry.epoch]}"
        else:
            assert revision == 1 or not last, f"{entry.epoch} begins with {revision}"
        assert (entry.applied_at_millis, entry.comment) == (_OFFSET + revision, f"change {revision}")
        last[entry.epoch] = revision
    return last


# The steps.

_ENTRIES = 3
"""Entries of the journal that a step adds."""


def _database(folder: Path) -> int:
    """Tables are replaced one after the other, and then the journal is written: so each may be one step ahead."""
    database = Database(folder)
    numbers = [number_of(database, table) for table in TABLES]
    assert numbers == sorted(numbers, reverse=True), f"not in the order of the commits: {numbers}"
    number = numbers[0] + 1
    assert numbers[-1] >= number - 2, f"more than one change is missing: {numbers}"
    assert database.load(TABLES[0]).key_count == ITEMS, "the file of RocketMQ was not imported"
    last = last_revisions(asyncio.run(Journal(database, "", 0).read(JournalQuery(limit=1_000_000)))[::-1])
    epoch = database.next_epoch(0)
    assert all(before < epoch for before in last)
    assert all(revision == _ENTRIES for revision in last.values()), "a batch is one transaction"
    asyncio.run(_write(database, epoch, number))
    return number


async def _write(database: Database, epoch: str, number: int) -> None:
    for table in TABLES:
        await database.replace(table, CONTENTS[table.name](number))
    journal = Journal(database, epoch, 1_000_000, max_entries=2 * _ENTRIES)
    for revision in range(1, _ENTRIES + 1):
        journal.on_change(journal_change(revision))
    await journal.write_last()
    await database.close(10)


def _snapshot(folder: Path) -> int:
    file = SnapshotFile(folder)
    number = _held([int(message) for message in file.load() or []]) + 1
    file.write([f"{number}".encode().rjust(5_000)] * 4)
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
    saved = TopicRouteData()
    for item in range(ITEMS):
        saved.queue_datas.add(broker_name=f"broker-{item:02}", read_queue_nums=number, write_queue_nums=number, perm=6)
    cache.save("topic", saved.SerializeToString())
    assert cache.load("topic") != route
    return number


OWNED: dict[str, Step] = {
    "namesrv.db": _database,
    "routes.snapshot": _snapshot,
    "topics.json": _topics,
    "route cache": _route_cache,
}
"""The kinds, by the name of the file or what it is."""


def _print(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _take_steps(folder: Path) -> None:
    for kind, step in OWNED.items():
        _print(f"{kind}: {step(folder)}")


def main() -> None:
    """Takes a step on each owned file in each folder that it reads, until standard input ends.

    Each time in a process of its own, which a failpoint may crash: a fork is a hundred times faster than Python's
    start. It prints ``<kind>: <number>`` for each step that is done, and ``ended <exit code>``.
    """
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _take_steps(Path(line.strip()))
            except BaseException:  # noqa: BLE001 - the boundary of a process
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _print(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()
