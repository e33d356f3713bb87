"""Each check accepts a history that is sound, and notices one that it is for: both are made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.history import Record
from tests.faults.invariants import BY_NAME, violations

SERVER, MASTER = "namesrv-1", "broker-b-0"
SOUND = 20.0
"""When the broker has been sound for long enough to be demanded."""
BROKER = [[0, BY_NAME[MASTER].addr]]
LACKS = ("T0", "only-broker-b")
HELD = {"name": SERVER, "pid": 7, "files": 30, "threads": 10, "tasks": 40, "rss_kib": 60_000}
LEFT = {"revision": 215, "removed": 1, "reason": "EXPIRED", "summary": ""}
CAME = {"revision": 225, "removed": 0, "reason": "UNSPECIFIED", "summary": ""}


class Story:
    """A history with a broker of each kind at one name server, sound unless something else is said."""

    def __init__(self) -> None:
        self.group = "broker-b"
        """Whose broker is looked up."""
        self.records: list[Record] = []
        self.add(0.0, "process", name=SERVER, event="started")
        for group in ("broker-b", "broker-d"):
            self.add(0.5, "topics", group=group, version=1, topics=["T0", "only-broker-b"])
            self.add(1.0, "process", name=f"{group}-0", event="started")
        self.add(60.0, "agreed", seconds=0.1, difference="")

    def add(self, at: float, what: str, **fields: Any) -> None:
        self.records.append({"at": at, "what": what, **fields})
        self.records.sort(key=lambda record: float(record["at"]))

    def lookup(
        self, at: float, *, version: int = 1, lacks: tuple[str, ...] = (), addr: str | None = None, **extra: int
    ) -> None:
        """An answer with both topics of the broker, but for those that it lacks."""
        addr = addr or BY_NAME[f"{self.group}-0"].addr
        topics = {"T0": version, "only-broker-b": version, **extra}
        rows = [row_of(topic, number, addr, self.group) for topic, number in topics.items() if topic not in lacks]
        answer = {
            "header": {"namesrv_name": SERVER, "epoch": "1", "revision": str(int(at * 10))},
            "routes": rows,
            "topics_not_found": [*lacks, "never"],
        }
        self.add(at, "lookup", server=SERVER, began=at - 0.01, answer=answer)

    def broken(self) -> list[str]:
        """The names of the checks that found something."""
        return [violation.partition(":")[0] for violation in violations(self.records)]


def row_of(topic: str, version: int, addr: str, group: str) -> dict[str, Any]:
    name = {"broker_name": group, "cluster_name": "c"}
    queues = {**name, "read_queue_nums": version, "write_queue_nums": version}
    return {
        "topic": topic,
        "route": {"queue_datas": [queues], "broker_datas": [{**name, "broker_addrs": [{"broker_addr": addr}]}]},
    }


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


def gone(story: Story, *, seconds: float) -> None:
    """A broker is lost, and is in routes for so long."""
    story.add(SOUND, "process", name=f"{story.group}-0", event="killed")
    story.lookup(SOUND + seconds)


def gone_unheard(story: Story, *, seconds: float) -> None:
    """A broker of RocketMQ is killed whose way was not sound, so nobody reports its end."""
    story.group = "broker-d"
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


def writes(story: Story, *reads: str) -> None:
    """One write is acknowledged, the next one loses its answer, and then values are read."""
    for at, value, outcome in ((10, "1", "ok"), (11, "2", "unknown")):
        story.add(at, "write", server=SERVER, item="kv k0", value=value, began=at - 0.1, outcome=outcome)
    for at, value in enumerate(reads, 12):
        story.add(at, "read", server=SERVER, began=at - 0.1, values={"kv k0": value})


def told(story: Story, *, reason: str) -> None:
    """A client loses a route, for a reason."""
    known = [
        {"groups": {"broker-b": groups} if groups else {}, "route": repr(groups), "stale": None, "origin": "o"}
        for groups in ([], BROKER, BROKER, [])
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


def journal(story: Story, *entries: dict[str, Any]) -> None:
    """A broker leaves and comes back between revisions 210, 220 and 230, and the journal has entries."""
    story.add(20.5, "process", name=MASTER, event="killed")
    for second in (21, 22, 23):
        story.lookup(second, lacks=LACKS if second == 22 else ())
    story.add(59, "journal", server=SERVER, epoch="1", group="broker-b", up_to=1_000, entries=entries)


def sampled(story: Story, **more: int) -> None:
    """A process has more than before."""
    story.add(5, "sample", phase="before", **HELD)
    story.add(55, "sample", phase="after", **{**HELD, **more})


ROWS: list[tuple[str, Tell, Tell]] = [
    ("found", lambda s: found(s, excused=True), lambda s: found(s, excused=False)),
    ("gone", lambda s: gone(s, seconds=14), lambda s: gone(s, seconds=16)),
    ("gone", lambda s: gone_unheard(s, seconds=30), lambda s: gone_unheard(s, seconds=32)),
    ("whole", lambda s: table(s, version=2, T1=2), lambda s: table(s, version=2, T1=2, lacks=("T1",))),
    ("whole", lambda s: s.lookup(SOUND), lambda s: s.lookup(SOUND, addr="127.0.0.1:10911")),
    ("forward", lambda s: back(s, version=2), lambda s: back(s, version=1)),
    ("writes", lambda s: writes(s, "1", "2", "2"), lambda s: writes(s, "1", "2", "1")),
    ("clients", lambda s: told(s, reason="UNREGISTERED"), lambda s: told(s, reason="CHANNEL_CLOSED")),
    ("watches", lambda s: watched(s, version=1), lambda s: watched(s, version=9)),
    ("journal", lambda s: journal(s, LEFT, CAME), lambda s: journal(s, CAME)),
    ("left over", lambda s: sampled(s, files=38), lambda s: sampled(s, files=39)),
    (
        "agreement",
        lambda s: s.add(61, "agreed", seconds=10.0, difference=""),
        lambda s: s.add(61, "agreed", seconds=10.0, difference="namesrv-2 lacks a broker"),
    ),
]
"""What a check is called, a sound history and a broken one."""


@pytest.mark.parametrize(("check", "sound", "broken"), ROWS)
def test_a_check_accepts_a_sound_history_and_notices_a_broken_one(check: str, sound: Tell, broken: Tell) -> None:
    for tell, expected in ((sound, set()), (broken, {check})):
        story = Story()
        tell(story)
        assert set(story.broken()) == expected


def test_that_agreement_was_never_looked_at_is_noticed() -> None:
    assert violations([]) == ["agreement: it was never looked at"]
