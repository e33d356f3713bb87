"""The journal: each change is told once, also by count, the newest are kept, and nobody waits for the disk."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from namesrv.core.changes import (
    Cause,
    Change,
    ChangeLog,
    ClusterChange,
    FilterServersChange,
    GroupChange,
    IntentChange,
    KvChange,
    LiveChange,
    QueuesChange,
    Row,
    SettingChange,
)
from namesrv.core.errors import Reason, suppress_refusals
from namesrv.core.journal import JournalEntry, JournalPosition, JournalQuery, entry_of, touched_names
from namesrv.core.model import (
    BrokerData,
    BrokerKey,
    BrokerLiveInfo,
    DataVersion,
    HoldKey,
    Intent,
    IntentKind,
    LiveKey,
    Member,
    QueueData,
    RemovalReason,
    WriteRule,
)
from namesrv.limits import MAX_WAITING_JOURNAL_READS
from namesrv.storage import database
from namesrv.storage.database import DATABASE_FILE, Database
from namesrv.storage.journal import GATHER_SECONDS, MAX_BATCH_ROWS, MAX_TOPICS_OF_ENTRY, TRIM_STEP, Journal
from tests.support.fakes.busy_database import held_by_another, until
from tests.support.refusals import refuses
from tests.unit.namesrv.storage.storage_inputs import opened

EPOCH, EARLIER, LATER = "000000000000002-00000000", "000000000000001-00000000", "000000000000003-00000000"
WAIT_SECONDS = 60.0
"""For what other threads do; never waited for in full."""
ALL = JournalQuery(1_000_000)
PUT = KvChange(("ns", "key"), None, "value")
QUEUES = QueueData(BrokerKey("c", "b"), 4, 4, 6, 0, b"", ())
UNBOUNDED = 10**12


class Kept:
    """A change log whose changes go into a journal."""

    def __init__(self, db: Database, epoch: str = EPOCH, max_bytes: int = UNBOUNDED, **bounds: int) -> None:
        self.log = ChangeLog()
        self.journal = Journal(db, epoch, max_bytes, **bounds)
        self.log.listen(self.journal.on_change)

    def append(self, *rows: Row, times: int = 1, at: int = 1_700_000_000_001, comment: str = "why") -> None:
        for _ in range(times):
            self.log.append(Change(Cause("PutKvConfig", "caller", comment), rows or (PUT,)), at)

    async def told(self) -> list[int | tuple[int, int]]:
        """Oldest first, the revisions of changes, and the first and the last one of those that are missing."""
        return [_told(entry) for entry in reversed(await self.journal.read(ALL))]


def _told(entry: JournalEntry) -> int | tuple[int, int]:
    if entry.cause != "journal":
        return entry.revision
    words = entry.summary.split()
    first = int(words[words.index("revision") + 1])
    assert words[:5] == [f"{entry.revision - first + 1:,}", "changes", "are", "missing", "here,"]
    return first, entry.revision


def put(*topics: str, broker: BrokerKey) -> QueuesChange:
    return QueuesChange(broker, None, dict.fromkeys(topics, QUEUES), write=WriteRule.WIPED)


def lost(topics: Iterable[str], broker: BrokerKey = QUEUES.broker) -> QueuesChange:
    return QueuesChange(broker, dict.fromkeys(topics, QUEUES), None, RemovalReason.GROUP_GONE)


def wide(topics: int) -> QueuesChange:
    """A row that weighs as much as it has topics."""
    return lost(f"T{number}" for number in range(topics))


class Slow(Mapping[str, QueueData]):
    """Topics that the committing thread cannot walk until it is let."""

    def __init__(self) -> None:
        self.begun, self.lets_go = threading.Event(), threading.Event()

    def __contains__(self, topic: object) -> bool:
        return False

    def __getitem__(self, topic: str) -> QueueData:
        return QUEUES

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        self.begun.set()
        assert self.lets_go.wait(WAIT_SECONDS)
        return iter(["T"])

    def row(self) -> QueuesChange:
        return QueuesChange(QUEUES.broker, self, None, RemovalReason.GROUP_GONE)


def _last(connection: sqlite3.Connection) -> int:
    """The last revision in the table; 0 if there is none."""
    return int(connection.execute("SELECT total(max_) FROM (SELECT max(revision) AS max_ FROM journal)").fetchone()[0])


async def until_written(db: Database, revision: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await db.read(_last) < revision:
            pass


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database that does not wait for another program's lock."""
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.0)
    with opened(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database for the many examples of a property. Each example empties its journal first."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "LOCK_SECONDS", 0.0)
        with opened(tmp_path_factory.mktemp("shared")) as made:
            yield made


async def emptied(db: Database) -> Database:
    await db.write(lambda connection: connection.execute("DELETE FROM journal"))
    return db


# The content of an entry, and the names that find it.


CLUSTERS = ["c", "d"]
BROKERS = ["b", "bb", "B", "b.", "c"]
TOPICS = ["t", "tt", "T", "%RETRY%t", "b"]
GROUPS = st.builds(BrokerKey, st.sampled_from(CLUSTERS), st.sampled_from(BROKERS))
HOLDS = st.builds(HoldKey, st.sampled_from(TOPICS), st.none())
NAMED = st.sets(st.sampled_from(TOPICS), min_size=1)
LIVE = GROUPS.map(lambda group: BrokerLiveInfo(group, 0, "10.0.0.1:1", None, DataVersion(1, 1), None, 1, 120.0))
DATA = GROUPS.map(lambda group: BrokerData(group, (Member(0, "10.0.0.1:1"),)))
REASONS = st.sampled_from(RemovalReason)
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(lambda broker, topics: put(*topics, broker=broker), GROUPS, NAMED),
    st.builds(lambda broker, topics: lost(topics, broker), GROUPS, NAMED),
    st.builds(lambda group: GroupChange(group.key, None, group), DATA),
    st.builds(lambda group, reason: GroupChange(group.key, group, None, reason), DATA, REASONS),
    st.builds(lambda live: LiveChange(live.key, None, live), LIVE),
    st.builds(lambda live, reason: LiveChange(live.key, live, None, reason), LIVE, REASONS),
    st.builds(lambda name: ClusterChange(name, None, frozenset({"b"})), st.sampled_from(CLUSTERS)),
    st.builds(lambda group: FilterServersChange(LiveKey("c", "10.0.0.1:1"), None, ("a",), broker=group), GROUPS),
    st.builds(
        lambda *key: KvChange(key, None, "v"),
        st.sampled_from(["ORDER_TOPIC_CONFIG", "ns"]),
        st.sampled_from([*TOPICS, "t\nb", "\n"]),
    ),
    st.builds(lambda key: IntentChange(key, None, Intent(IntentKind.WIPE_WRITE_PERM, key, "c", 1)), GROUPS),
    st.builds(lambda key: IntentChange(key, None, Intent(IntentKind.TOPIC_HOLD, key, "c", 1)), HOLDS),
    st.just(SettingChange("b", None, "t")),
)
TIMES = st.integers(0, 5)
CHANGES = st.lists(st.tuples(TIMES, st.lists(ROWS, max_size=4)), max_size=12)
PLACES = st.builds(JournalPosition, st.sampled_from([EARLIER, EPOCH, EPOCH, LATER]), st.integers(0, 14))
QUERIES = st.builds(
    JournalQuery,
    st.sampled_from([1, 2, 100]),
    before=st.none() | PLACES,
    after=st.none() | PLACES,
    topic=st.none() | st.sampled_from(TOPICS),
    broker_name=st.none() | st.sampled_from(BROKERS),
    from_millis=st.none() | TIMES,
    to_millis=st.none() | TIMES,
)


def passes(change: Change, query: JournalQuery) -> bool:
    """Whether a query asks for a change."""
    brokers, topics = touched_names(change, MAX_TOPICS_OF_ENTRY)
    place, at = JournalPosition(EPOCH, change.revision), change.applied_at_millis
    return all(
        [
            query.before is None or place < query.before,
            query.after is None or place > query.after,
            query.topic is None or query.topic in (topics or ()),
            query.broker_name is None or query.broker_name in brokers,
            query.from_millis is None or at >= query.from_millis,
            query.to_millis is None or at < query.to_millis,
        ]
    )


@example(
    changes=[(1, [KvChange(("ORDER_TOPIC_CONFIG", "t\nb"), None, "v")])],
    queries=[JournalQuery(9, topic="t")],
    written=1,
)
@given(changes=CHANGES, queries=st.lists(QUERIES, min_size=1, max_size=5), written=st.integers(0, 12))
async def test_a_query_finds_the_newest_that_pass_all_filters_written_or_not(
    shared: Database, changes: list[tuple[int, list[Row]]], queries: list[JournalQuery], written: int
) -> None:
    kept = Kept(await emptied(shared))
    for number, (at, rows) in enumerate(changes):
        kept.append(*rows, at=at)
        if number < written:
            await kept.journal.write_last()
    for query in [ALL, *queries]:
        passing = [entry_of(EPOCH, change) for change in kept.log.newest_first() if passes(change, query)]
        assert await kept.journal.read(query) == passing[: query.limit]


async def test_an_entry_of_very_many_topics_is_found_by_every_topic(db: Database) -> None:
    kept = Kept(db)
    kept.append(wide(MAX_TOPICS_OF_ENTRY + 1))
    kept.append(wide(MAX_TOPICS_OF_ENTRY), wide(MAX_TOPICS_OF_ENTRY))
    kept.append(put("another", broker=BrokerKey("c", "a")))
    await kept.journal.write_last()

    async def found(query: JournalQuery) -> list[int]:
        return [entry.revision for entry in await kept.journal.read(query)]

    assert await found(JournalQuery(9, topic="T1")) == [2, 1]
    assert await found(JournalQuery(9, topic="another")) == [3, 1]
    assert await found(JournalQuery(9, topic="another", broker_name="b")) == [1]
    assert await found(JournalQuery(9, topic="another", broker_name="a")) == [3]


# What is kept.


@given(
    lengths=st.lists(st.lists(st.integers(0, 60), max_size=5), max_size=4),
    max_entries=st.integers(1, 12),
    max_bytes=st.integers(1, 1_500),
)
async def test_the_newest_entries_within_both_bounds_are_kept(
    shared: Database, lengths: list[list[int]], max_entries: int, max_bytes: int
) -> None:
    await emptied(shared)
    sizes: list[int] = []
    for number, batch in enumerate(lengths):
        kept = Kept(shared, f"{number:015}-00000000", max_bytes, max_entries=max_entries)
        for length in batch:
            kept.append(comment="ö" * length)
            entry = entry_of(EPOCH, kept.log.last)
            texts = (entry.caller, entry.cause, entry.comment, entry.summary, "\n", "\n")
            sizes.append(sum(len(text.encode()) for text in texts))
        await kept.journal.write_last()
    within = [
        count for count in range(min(max_entries, len(sizes)) + 1) if sum(sizes[len(sizes) - count :]) <= max_bytes
    ]
    revisions = [revision for batch in lengths for revision in range(1, len(batch) + 1)]
    found = await Kept(shared).journal.read(ALL)
    assert [entry.revision for entry in reversed(found)] == revisions[len(revisions) - max(within) :]


async def test_lower_bounds_after_a_restart_hold_from_the_first_commit_on(tmp_path: Path) -> None:
    first = Database(tmp_path)
    kept = Kept(first, EARLIER)
    kept.append(times=2 * TRIM_STEP + 500)
    await kept.journal.write_last()
    assert len(await kept.journal.read(ALL)) == 2 * TRIM_STEP + 500
    await first.close(WAIT_SECONDS)
    second = Database(tmp_path)
    kept = Kept(second, max_entries=3)
    kept.append()
    await kept.journal.write_last()
    of_before = [(EARLIER, 2 * TRIM_STEP + number) for number in (500, 499)]
    assert [entry.position for entry in await kept.journal.read(ALL)] == [(EPOCH, 1), *of_before]
    await second.close(WAIT_SECONDS)


# What waits.


@given(
    steps=st.lists(st.tuples(st.sampled_from(["taken", "refused"]), *[st.integers(0, 9)] * 2), max_size=8),
    shutdown=st.none() | st.tuples(st.just("cancelled"), *[st.integers(0, 9)] * 2),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
async def test_each_change_is_told_once_or_counted_once_whatever_the_disk_does(
    shared: Database, steps: list[tuple[str, int, int]], shutdown: tuple[str, int, int] | None, widths: list[int]
) -> None:
    kept = Kept(await emptied(shared), max_waiting=6, max_waiting_rows=30)
    rows = itertools.cycle(wide(width) for width in widths)

    async def write(meanwhile: int, *, is_cancelled: bool) -> None:
        writing = asyncio.create_task(kept.journal.write_last())
        await asyncio.sleep(0)
        for _ in range(meanwhile):
            kept.append(next(rows))
        if is_cancelled:
            writing.cancel()
        with suppress_refusals(Reason.NOT_DURABLE), suppress(asyncio.CancelledError):
            await writing

    for outcome, before, meanwhile in [*steps, *filter(None, [shutdown])]:
        for _ in range(before):
            kept.append(next(rows))
        with held_by_another(shared.folder) if outcome == "refused" else nullcontext():
            await write(meanwhile, is_cancelled=outcome == "cancelled")
    await kept.journal.write_last()
    kept.append()
    kept.append(wide(27))  # the queue is empty, so that both just fit, and no more
    kept.append(wide(2))
    await kept.journal.write_last()
    told = await kept.told()
    parts = [(part, part) if isinstance(part, int) else part for part in told]
    covered = [revision for first, last in parts for revision in range(first, last + 1)]
    assert covered == list(range(1, kept.log.last.revision + 1))
    assert kept.journal.left_out == sum(part[1] - part[0] + 1 for part in told if isinstance(part, tuple))
    assert told[-3:] == [*covered[-3:-1], (covered[-1], covered[-1])]


async def test_what_does_not_fit_is_told_by_one_entry_that_every_search_finds(db: Database) -> None:
    kept = Kept(db, max_waiting=3)
    with capture_logs() as logs:
        kept.append(times=8)
    assert kept.journal.left_out == 5
    assert logs == [{"event": "journal_leaves_out_changes", "revision": 4, "waiting": 3, "log_level": "warning"}]
    await kept.journal.write_last()
    assert await kept.told() == [1, 2, 3, (4, 8)]
    gap = (await kept.journal.read(ALL))[0]
    assert gap.summary == "5 changes are missing here, from revision 4 on: too many waited for the disk"
    for query in (JournalQuery(9, topic="any"), JournalQuery(9, broker_name="any")):
        assert await kept.journal.read(query) == [gap]


async def test_a_gap_that_grows_while_the_disk_refuses_is_still_one_entry(db: Database, tmp_path: Path) -> None:
    kept = Kept(db, max_waiting=3)
    kept.append(times=4)
    with held_by_another(tmp_path):
        for _ in range(5):
            writing = asyncio.create_task(kept.journal.write_last())
            await asyncio.sleep(0)
            kept.append(times=2)
            with refuses(Reason.NOT_DURABLE):
                await writing
    await kept.journal.write_last()
    assert await kept.told() == [1, 2, 3, (4, 14)]


async def test_wide_changes_count_by_their_rows_and_one_alone_is_always_taken(db: Database) -> None:
    kept = Kept(db, max_waiting_rows=100)
    kept.append(wide(1_000))
    kept.append()
    await kept.journal.write_last()
    kept.append(wide(60), times=2)
    kept.append()
    await kept.journal.write_last()
    assert await kept.told() == [1, (2, 2), 3, (4, 4), 5]
    assert kept.journal.left_out == 2


def test_changes_that_wait_do_not_keep_those_after_them_in_memory(db: Database) -> None:
    class Watched(str):
        __slots__ = ("__weakref__",)

    kept = Kept(db, max_waiting=1)
    kept.log = ChangeLog(max_changes=1)
    kept.log.listen(kept.journal.on_change)
    kept.append()
    caller = Watched("left out")
    gone = weakref.ref(caller)
    kept.log.append(Change(Cause("x", caller), (PUT,)), 1)
    del caller
    kept.append()
    gc.collect()
    assert gone() is None


# The writing.


async def test_a_registration_never_waits_for_a_disk_that_hangs(db: Database) -> None:
    slow = Slow()
    kept = Kept(db, max_waiting=10)
    writing = asyncio.create_task(kept.journal.keep_writing(no_pause))
    kept.append(slow.row())
    await until(slow.begun)
    kept.append(times=15)  # on the event loop, which continues
    slow.lets_go.set()
    await until_written(db, 16)
    writing.cancel()
    assert await kept.told() == [*range(1, 11), (11, 16)]


async def test_nothing_is_written_while_nothing_changes(db: Database) -> None:
    kept = Kept(db)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            kept.append(times=5)  # gathered into one commit
        await asyncio.sleep(0)

    writing = asyncio.create_task(kept.journal.keep_writing(sleep))
    kept.append()
    await until_written(db, 6)
    for _ in range(100):
        await asyncio.sleep(0)
    assert pauses == [GATHER_SECONDS]
    kept.append()
    await until_written(db, 7)
    writing.cancel()
    assert pauses == [GATHER_SECONDS] * 2


async def test_a_disk_that_refuses_is_tried_less_and_less_often(db: Database, tmp_path: Path) -> None:
    kept = Kept(db)
    pauses: list[float] = []
    cause = ExitStack()
    refused_again = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            cause.close()
        if len(pauses) == 10:
            refused_again.set()
        await asyncio.sleep(0)

    writing = asyncio.create_task(kept.journal.keep_writing(sleep, random.Random(1)))
    cause.enter_context(held_by_another(tmp_path))
    kept.append(times=2)
    await until_written(db, 2)
    with held_by_another(tmp_path):
        kept.append()
        await refused_again.wait()
    await until_written(db, 3)
    writing.cancel()
    assert pauses[0] == pauses[8] == GATHER_SECONDS
    for pause, step in zip(pauses[1:8], [0.5, 1, 2, 4, 8, 10, 10], strict=True):
        assert step / 2 <= pause <= step
    assert 0.25 <= pauses[9] <= 0.5, "the first pause again"


async def test_the_last_write_takes_all_that_waits_in_commits_of_bounded_size(tmp_path: Path) -> None:
    class Counting(Database):
        commits = 0

        async def write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
            self.commits += 1
            return await super().write(work)

    db = Counting(tmp_path)
    kept = Kept(db)
    for topics in (MAX_BATCH_ROWS + 1, 1, MAX_BATCH_ROWS - 10, 1, 1, 20):
        kept.append(wide(topics))
    await kept.journal.write_last()
    assert await kept.told() == list(range(1, 7))
    assert db.commits == 3
    await db.close(WAIT_SECONDS)


@pytest.mark.parametrize("is_queued", [True, False], ids=["before the commit", "in its middle"])
@pytest.mark.parametrize("after", [0, 1])
async def test_a_shutdown_loses_no_change(db: Database, is_queued: bool, after: int) -> None:
    before, slow = Slow(), Slow()
    kept = Kept(db)
    queue = asyncio.create_task(db.write(lambda _: list(before)))
    await until(before.begun)
    writing = asyncio.create_task(kept.journal.keep_writing(no_pause))
    kept.append(slow.row())
    for _ in range(9):
        await asyncio.sleep(0)
    if not is_queued:
        before.lets_go.set()
        await until(slow.begun)
    kept.append(times=after)
    writing.cancel()
    await asyncio.wait([writing])
    for topics in (before, slow):
        topics.lets_go.set()
    await asyncio.gather(queue, kept.journal.write_last())
    assert await kept.told() == [*range(1, 2 + after)]
    assert db.problem is None


async def test_a_commit_that_a_shutdown_repeats_counts_its_entries_once(db: Database) -> None:
    kept, slow = Kept(db, max_entries=5), Slow()
    writing = asyncio.create_task(kept.journal.keep_writing(no_pause))
    kept.append(times=8)
    kept.append(slow.row())
    await until(slow.begun)
    writing.cancel()
    await asyncio.wait([writing])
    slow.lets_go.set()
    await kept.journal.write_last()
    assert await kept.told() == [5, 6, 7, 8, 9]


# The reading.


async def test_reads_beyond_the_bound_are_refused(db: Database) -> None:
    begun, lets_go = threading.Event(), threading.Event()
    journal = Kept(db).journal

    def hang(_: sqlite3.Connection) -> None:
        begun.set()
        assert lets_go.wait(WAIT_SECONDS)

    hanging = asyncio.create_task(db.read(hang))
    await until(begun)
    reads = [asyncio.create_task(journal.read(ALL)) for _ in range(MAX_WAITING_JOURNAL_READS)]
    await asyncio.sleep(0)
    with refuses(Reason.OVERLOADED, match="100 reads"):
        await journal.read(ALL)
    lets_go.set()
    await hanging
    assert await asyncio.gather(*reads) == [[]] * MAX_WAITING_JOURNAL_READS
    assert await journal.read(ALL) == []


async def test_a_table_that_cannot_be_read_is_an_error_of_the_call(db: Database, tmp_path: Path) -> None:
    kept = Kept(db)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as shell:
        shell.execute("DROP TABLE journal")
    with capture_logs() as logs, refuses(Reason.NOT_DURABLE, match="cannot be read"):
        await kept.journal.read(ALL)
    assert [log["event"] for log in logs] == ["journal_not_read"]
