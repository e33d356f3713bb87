"""Each check accepts a history that is sound, and notices one that it is for: both are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.invariants import violations
from tests.faults.invariants.lookups import BY_NAME
from tests.faults.story import MASTER, SERVER, SOUND, Story, row_of

BROKER = [[0, BY_NAME[MASTER].addr]]
LACKS = ("T0", "only-broker-b")
HELD = {"name": SERVER, "pid": 7, "files": 30, "threads": 10, "tasks": 40, "rss_kib": 60_000}
LEFT = {"revision": 215, "removed": 1, "reason": "EXPIRED", "summary": ""}
CAME = {"revision": 225, "removed": 0, "reason": "UNSPECIFIED", "summary": ""}
PUT = ["topic_queues", "T0/c/broker-b", "put", [1, 1, 6, 0]]
READS = ["reads", "127.0.0.1:1"]

Tell = Callable[[Story], Any]
"""Tells what happens in a history."""


def found(story: Story, *, excused: bool) -> None:
    """A topic is there and then is not; the broker's connection may have been reset."""
    story.lookup(SOUND)
    if excused:
        story.add(SOUND + 0.5, "link", client=MASTER, server=SERVER, event="reset")
    else:  # what happens to the name server is no excuse
        story.add(SOUND + 0.3, "process", name=SERVER, event="killed")
        story.add(SOUND + 0.6, "process", name=SERVER, event="started")
    story.lookup(SOUND + 1, lacks=LACKS)


def gone(story: Story, *, seconds: float, event: str = "killed", stalled: bool = False) -> None:
    """A broker is lost, and is in routes for so long."""
    story.add(SOUND, "process", name=f"{story.group}-0", event=event)
    if stalled:
        story.add(SOUND + 1, "log", server=SERVER, event="own_stall", seen_at=SOUND + 1)
    story.lookup(SOUND + seconds)


def gone_unheard(story: Story, *, seconds: float) -> None:
    """A broker of RocketMQ is killed whose way was not sound, so nobody tells of its end."""
    link = {"client": "broker-d-0", "server": SERVER}
    story.add(SOUND - 10, "link", event="half open", server_knows=False, **link)
    story.add(SOUND - 5, "link", event="healed", **link)
    gone(story, seconds=seconds)


def table(story: Story, **rows: Any) -> None:
    """The broker has a second table, and a lookup finds these rows of it."""
    story.add(SOUND, "topics", group="broker-b", version=2, topics=["T0", "T1", "only-broker-b"])
    story.lookup(SOUND + 1, **rows)


def back(story: Story, *, version: int) -> None:
    """A table takes the place of the second one."""
    table(story, version=2, T1=2)
    extra: dict[str, Any] = {"T1": 2} if version == 2 else {}
    story.lookup(SOUND + 2, version=version, **extra)


def writes(story: Story, *reads: str, outcome: str = "unknown") -> None:
    """One write is acknowledged, the next one has an outcome, and then values are read."""
    for at, value, its_outcome in ((10, "1", "ok"), (11, "2", outcome)):
        story.add(at, "write", server=SERVER, item="kv k0", value=value, began=at - 0.1, outcome=its_outcome)
    for at, value in enumerate(reads, 12):
        story.add(at, "read", server=SERVER, began=at - 0.1, values={"kv k0": value})


def told(story: Story, *, reason: str, before: list[Any] = BROKER) -> None:
    """A client loses a route, for a reason."""
    known = [
        {"groups": {"broker-b": groups} if groups else {}, "route": repr(groups), "stale": None, "origin": "o"}
        for groups in ([], BROKER, before, [])
    ]
    removal = {"group": "broker-b", "id": 0, "reason": reason}
    for at, first in ((10, 0), (11, 2)):
        one: dict[str, Any] = {
            "topic": "T0",
            "before": known[first],
            "after": known[first + 1],
            "removals": [removal] * (first // 2),
        }
        for part in ("before", "after"):
            one[part] = {**one[part], "revision": at}
        story.add(at, "told", client="client-1", pid=7, seen_at=at, told=one)


def watched(story: Story, *, version: int) -> None:
    """A watch gets a row, and a lookup has another of that time or the same."""
    header = {"namesrv_name": SERVER, "epoch": "1", "revision": "210"}
    watch = {"watcher": "w", "server": SERVER, "stream": 1}
    row = row_of("T0", version, BY_NAME[MASTER].addr, "broker-b")
    story.add(20, "watch", event="opened", request={"topics": ["T0"]}, **watch)
    story.lookup(21)
    message = {"header": header, "changes": [row], "bookmark": True}
    story.add(22, "watch", event="message", message=message, **watch)


def journal(story: Story, *entries: dict[str, Any], event: str = "killed") -> None:
    """A broker leaves and comes back between revisions 210, 220 and 230, and the journal has entries."""
    story.add(20.5, "process", name=MASTER, event=event)
    for second in (21, 22, 23):
        story.lookup(second, lacks=LACKS if second == 22 else ())
    story.add(59, "journal", server=SERVER, epoch="1", group="broker-b", up_to=1_000, entries=entries)


def ingested(story: Story, *rows: list[Any], up_to: int = 3, reads: tuple[list[Any], ...] = ()) -> None:
    """A pipeline's log has a snapshot of revision 1 and these rows; revisions 2 and 3 were told."""
    for revision in (2, 3):
        changed = [[revision, *PUT]]
        story.add(40 + revision, "changes", server=SERVER, epoch="1", after=revision - 1, up_to=revision, rows=changed)
    begun = [[1, True, *PUT], [1, True, *READS, "snapshot", [None]]]
    read = reads or ([up_to, False, *READS, "changes", [1]],)
    for reader in ("Spark", "Arrow"):
        story.add(50, "ingested", reader=reader, server=SERVER, epoch="1", rows=[*begun, *rows, *read])


def left(story: Story, **more: int) -> None:
    """A process has more than before."""
    story.add(5, "sample", phase="before", **HELD)
    story.add(55, "sample", phase="after", **{**HELD, **more})


TOLD = ([2, False, *PUT], [3, False, *PUT])
HOLE = ([2, False, *READS, "changes", [1]], [2, False, *READS, "hole", [2]], [3, False, *READS, "changes", [3]])
ROWS: list[tuple[str, str, Tell, Tell]] = [
    ("found", "broker-b", lambda s: found(s, excused=True), lambda s: found(s, excused=False)),
    ("gone", "broker-b", lambda s: gone(s, seconds=14), lambda s: gone(s, seconds=16)),
    ("gone", "broker-b", lambda s: gone(s, seconds=16, stalled=True), lambda s: gone(s, seconds=100, stalled=True)),
    (
        "gone",
        "broker-d",
        lambda s: gone(s, seconds=30, event="stopped"),
        lambda s: gone(s, seconds=32, event="stopped"),
    ),
    ("gone", "broker-d", lambda s: gone(s, seconds=14), lambda s: gone(s, seconds=16)),
    ("gone", "broker-d", lambda s: gone_unheard(s, seconds=30), lambda s: gone_unheard(s, seconds=32)),
    ("whole", "broker-b", lambda s: table(s, version=2, T1=2), lambda s: table(s, version=2, T1=2, lacks=("T1",))),
    ("whole", "broker-b", lambda s: table(s, version=1), lambda s: table(s, T0=2)),
    ("whole", "broker-b", lambda s: s.lookup(SOUND), lambda s: s.lookup(SOUND, addr="127.0.0.1:10911")),
    ("forward", "broker-b", lambda s: back(s, version=2), lambda s: back(s, version=1)),
    ("writes", "broker-b", lambda s: writes(s, "1", "2", "2"), lambda s: writes(s, "1", "2", "1")),
    ("writes", "broker-b", lambda s: writes(s, "2", outcome="ok"), lambda s: writes(s, "2", outcome="no")),
    ("clients", "broker-b", lambda s: told(s, reason="UNREGISTERED"), lambda s: told(s, reason="CHANNEL_CLOSED")),
    (
        "clients",
        "broker-b",
        lambda s: told(s, reason="BROKER_DOWN"),
        lambda s: told(s, reason="BROKER_DOWN", before=[[0, "127.0.0.1:1"]]),
    ),
    ("watches", "broker-b", lambda s: watched(s, version=1), lambda s: watched(s, version=9)),
    ("journal", "broker-b", lambda s: journal(s, LEFT, CAME), lambda s: journal(s, CAME)),
    (
        "journal",
        "broker-b",
        lambda s: journal(s, {**LEFT, "reason": "UNREGISTERED"}, CAME, event="ended"),
        lambda s: journal(s, {**LEFT, "reason": "UNREGISTERED"}, CAME),
    ),
    ("pipeline", "broker-b", lambda s: ingested(s, *TOLD), lambda s: ingested(s, TOLD[1])),
    ("pipeline", "broker-b", lambda s: ingested(s, *TOLD), lambda s: ingested(s, TOLD[0], *TOLD)),
    ("pipeline", "broker-b", lambda s: ingested(s, *TOLD), lambda s: ingested(s, TOLD[0], up_to=2)),
    (
        "pipeline",
        "broker-b",
        lambda s: ingested(s, TOLD[0], [3, True, *READS, "snapshot", [None]], reads=HOLE),
        lambda s: ingested(s, TOLD[0], reads=HOLE),
    ),
    ("left over", "broker-b", left, lambda s: left(s, files=39)),
    (
        "left over",
        "broker-b",
        lambda s: s.add(55, "watches", open=8, expected=8),
        lambda s: s.add(55, "watches", open=9, expected=8),
    ),
    (
        "agreement",
        "broker-b",
        lambda s: s.add(61, "agreed", seconds=10.0, difference=""),
        lambda s: s.add(61, "agreed", seconds=10.0, difference="namesrv-2 lacks a broker"),
    ),
]
"""What a check is called, the group of its histories, a sound history and a broken one."""


@pytest.mark.parametrize(("check", "group", "sound", "broken"), ROWS)
def test_a_check_accepts_a_sound_history_and_notices_a_broken_one(
    check: str, group: str, sound: Tell, broken: Tell
) -> None:
    for tell, expected in ((sound, set()), (broken, {check})):
        story = Story(group)
        tell(story)
        assert set(story.broken()) == expected


def test_that_agreement_was_never_looked_at_is_noticed() -> None:
    assert violations([]) == ["agreement: it was never looked at"]
