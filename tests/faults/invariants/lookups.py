"""Invariants of lookups: found, gone, whole, never older than before, and each change of them in the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from namesrv_api.v1 import route_service_pb2 as pb

from tests.faults.fleet.fleet import BROKERS, EXPIRY_SECONDS, ROCKETMQ
from tests.faults.fleet.operator import HELD_TOPIC
from tests.faults.history import Record, of_kind
from tests.faults.invariants.timeline import Answer, Timeline

SILENT_SECONDS = EXPIRY_SECONDS + 6.0
"""How long a broker of RocketMQ that is stopped or cut off may be in routes. Its protocol has no pings, so only silence
shows it (one scan more, and a busy machine). The end of its connection shows the end of its process."""
GONE_SECONDS = 15.0
"""How long a lost broker may be in routes: pings find it after 7 s (1 + 6), the rest is for a machine that is busy."""
DOUBTED_SECONDS = 80.0
"""... by a name server that did not run itself, after it ran again: a minute, and more for a busy machine."""
AFTERMATH_SECONDS = 11.0
"""After a fault has ended, what it did may still be noticed for so long: a connection may turn out to be lost. For
brokers of RocketMQ it is ``SILENT_SECONDS``."""

BY_NAME = {broker.name: broker for broker in (*BROKERS, *ROCKETMQ)}
MASTERS = {broker.group: broker for broker in BY_NAME.values() if broker.broker_id == 0}


def check_found(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """No NOT_FOUND for a topic that was there and whose master has been registered and seen ever since.

    Whatever happens to the name server in the meantime is no excuse: it may not answer, or say that it is warming up.
    """
    seen: dict[tuple[str, str, str], tuple[float, int]] = {}
    for answer in timeline.answers:
        versions = answer.versions()
        for row in answer.message.routes:
            for group in answer.masters(row.topic):
                since = seen.get((answer.server, group, row.topic), (answer.ended, 0))[0]
                seen[answer.server, group, row.topic] = since, versions[group].get(row.topic, 0)
        for key in [key for key in seen if key[0] == answer.server]:
            _, group, topic = key
            since, version = seen[key]
            broker = MASTERS[group]
            aftermath = SILENT_SECONDS if broker.is_stock else AFTERMATH_SECONDS
            begin = max(since - aftermath, timeline.first_ran_at(broker.name))  # before that there was no fault
            sound = timeline.was_sound(broker.name, answer.server, begin, answer.ended)
            reported = all(topic in table.topics for table in timeline.tables_given(group, version, answer.ended))
            if not sound or not reported or topic == HELD_TOPIC:
                del seen[key]
            elif topic in answer.message.topics_not_found:
                yield f"found: {topic} of {broker.name} was there since {since:.3f} s and is NOT_FOUND: {answer.where}"


def check_gone(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """No route names a broker that has been lost for longer than its bound."""
    for answer in timeline.answers:
        for name in answer.brokers():
            broker = BY_NAME[name]
            since = timeline.lost_since(broker.name, answer.server, answer.began)
            if since is None:
                continue
            doubted = timeline.doubts(answer.server, since - DOUBTED_SECONDS, answer.began)
            counts_since = max(since, timeline.ran_again_at(answer.server, answer.began)) if doubted else since
            is_silent = broker.is_stock and not timeline.end_was_told(broker.name, answer.server, answer.began)
            gone_seconds = SILENT_SECONDS if is_silent else GONE_SECONDS
            if answer.began - counts_since > (DOUBTED_SECONDS if doubted else gone_seconds):
                yield f"gone: {broker.name} has been lost since {since:.3f} s and is in routes: {answer.where}"


def check_whole(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """A group's topics are those of one table of its, all of them: no half registration. A broker is at its address."""
    for answer in timeline.answers:
        for name, addr in answer.addrs():
            broker = BY_NAME[name]
            if broker.release is None and addr != broker.addr:  # each run finds ports for RocketMQ's own programs
                yield f"whole: {name} is at {addr} and not at {broker.addr}: {answer.where}"
        rows = (*answer.message.routes, *(pb.NamedTopicRoute(topic=topic) for topic in answer.message.topics_not_found))
        asked = {row.topic for row in rows} | set(answer.message.topics_warming)
        for group, topics in answer.versions().items():
            versions = set(topics.values())
            if len(versions) > 1:
                yield f"whole: {group} has topics of several tables {topics}: {answer.where}"
                continue
            version = versions.pop()
            table = next((table for table in timeline.tables[group] if table.version == version), None)
            wanted = (table.topics & asked) - {HELD_TOPIC} if table else frozenset()
            if wanted != topics.keys() - {HELD_TOPIC}:
                yield f"whole: {group} has {sorted(topics)} and not {sorted(wanted)} of table {version}: {answer.where}"


def check_forward(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Within a life of a name server, an older table never takes the place of a newer one."""
    last: dict[tuple[str, str, str], int] = {}
    for answer in timeline.answers:
        for group, topics in answer.versions().items():
            key, version = (answer.server, answer.message.header.epoch, group), max(topics.values())
            if version < last.get(key, 0):
                yield f"forward: {group} went back from table {last[key]} to {version}: {answer.where}"
            last[key] = version


ENDING_SECONDS = 60.0
"""How long a process may take to end: it unregisters in the meantime."""


@dataclass
class Journal:
    """The entries about a group in the journal of a name server, between two starts."""

    up_to: int = 0
    """All entries until this revision are known."""
    entries: list[Record] = field(default_factory=list)

    def between(self, after: int, up_to: int) -> list[Record]:
        """The entries after one revision, until another."""
        return [entry for entry in self.entries if after < entry["revision"] <= up_to]


def check_journal(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Where one of two lookups finds a broker and the other does not, the journal has an entry that says why.

    If the broker has left, the entry says how many did and why; that it unregistered is said only of one that was asked
    to end.
    """
    journals = _journals(records)
    last: dict[tuple[str, str], Answer] = {}
    for answer in timeline.answers:
        key = answer.server, answer.message.header.epoch
        before = last.get(key)
        last[key] = answer
        if before is None or answer.again:
            continue
        there, was_there = answer.brokers(), before.brokers()
        for name in sorted(there ^ was_there):
            journal = journals[*key, name.rpartition("-")[0]]
            if answer.message.header.revision <= journal.up_to:
                entries = journal.between(before.message.header.revision, answer.message.header.revision)
                problem = _problem(name, entries, timeline, answer, has_left=name in was_there)
                if problem:
                    yield f"journal: {problem}: {answer.where}"


def _journals(records: list[Record]) -> dict[tuple[str, str, str], Journal]:
    journals: dict[tuple[str, str, str], Journal] = defaultdict(Journal)
    for record in of_kind(records, "journal"):
        journal = journals[record["server"], record["epoch"], record["group"]]
        journal.entries += record["entries"]
        journal.up_to = record["up_to"]
    return journals


def _problem(name: str, entries: list[Record], timeline: Timeline, answer: Answer, *, has_left: bool) -> str:
    if not has_left:
        return "" if entries else f"{name} has come, and there is no entry"
    removals = [entry for entry in entries if entry["removed"]]
    if not removals:
        return f"{name} has left, and there is no entry that says so"
    reasons = {entry["reason"] for entry in removals}
    was_asked = timeline.was_asked_to_end(name, answer.ended - ENDING_SECONDS, answer.ended)
    if reasons == {"UNREGISTERED"} and not was_asked:
        return f"{name} has left, and the journal says that it unregistered"
    return f"{name} has left for no reason" if "UNSPECIFIED" in reasons else ""
