"""Invariants of every history, whatever the faults: checks that read a history and say what is broken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format
from namesrv_api.v1 import route_service_pb2 as pb

from tests.faults.fleet.fleet import BROKERS, EXPIRY_SECONDS, ROCKETMQ
from tests.faults.fleet.workers import HELD_TOPIC
from tests.faults.history import Answer, Record, Timeline, of_kind
from tests.support.routes.watch_validators import Lookup, WatchedStream, check_promises

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


def check_journal(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Where one of two lookups finds a broker and the other does not, the journal has an entry that says why.

    If the broker has left, the entry says how many did and why; that it unregistered is said only of one that was asked
    to end.
    """
    entries: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    known_up_to: dict[tuple[str, str, str], int] = defaultdict(int)
    for record in of_kind(records, "journal"):
        journal = record["server"], record["epoch"], record["group"]
        entries[journal] += record["entries"]
        known_up_to[journal] = record["up_to"]
    last: dict[tuple[str, str], Answer] = {}
    for answer in timeline.answers:
        key = answer.server, answer.message.header.epoch
        before = last.get(key)
        last[key] = answer
        if before is None or answer.again:
            continue
        there, was_there = answer.brokers(), before.brokers()
        after, up_to = before.message.header.revision, answer.message.header.revision
        for name in sorted(there ^ was_there):
            journal = *key, name.rpartition("-")[0]
            if up_to <= known_up_to[journal]:
                between = [entry for entry in entries[journal] if after < entry["revision"] <= up_to]
                problem = _problem(name, between, timeline, answer, has_left=name in was_there)
                if problem:
                    yield f"journal: {problem}: {answer.where}"


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


LATE_SECONDS = 15.0
"""How long after a write whose answer was lost it may take effect: it may wait in a connection of a stopped process."""

Value = str | None


@dataclass
class Item:
    """What may be read of one item."""

    value: Value = None
    known: bool = False
    """Whether it has been read or written at all."""
    lost: list[tuple[float, Value]] = field(default_factory=list)
    """Writes without an answer that may still take effect, and until when."""

    def accepts(self, value: Value, at: float) -> bool:
        """Whether this may be read now; if so, it is what must be read from now on."""
        self.lost = [(until, lost) for until, lost in self.lost if until >= at]
        if self.known and value != self.value and all(value != lost for _, lost in self.lost):
            return False
        self.value, self.known = value, True
        return True


def check_writes(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Whatever is read was acknowledged last, or lost its answer a moment ago."""
    items: dict[tuple[str, str], Item] = defaultdict(Item)
    for record in records:
        server = record.get("server", "")
        if record["what"] == "write":
            item = items[server, record["item"]]
            if record["outcome"] == "ok":
                item.value, item.known = record["value"], True
            elif record["outcome"] == "unknown":
                late = timeline.comes_back_after(server, record["at"]) + LATE_SECONDS
                item.lost.append((late, record["value"]))
        elif record["what"] == "read":
            for name, value in record["values"].items():
                item = items[server, name]
                if not item.accepts(value, record["at"]):
                    yield (
                        f"writes: {name} of {server} is {value!r} at {record['at']:.3f} s, "
                        f"and {item.value!r} was acknowledged"
                    )
                    item.value = value


REALLY_WENT = frozenset(
    {"UNREGISTERED", "BROKER_DOWN", "REPLACED", "NOT_IN_REGISTRATION", "DELETED_BY_OPERATOR", "LOSS_CONFIRMED"}
)
"""Reasons that are somebody's decision: route_client believes them at once."""


def check_watches(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """The seven promises, in each epoch by itself."""
    lookups: dict[str, list[Lookup]] = defaultdict(list)
    for lookup in _changed_lookups(timeline):
        lookups[lookup.epoch].append(lookup)
    for epoch, clients in _lives(records).items():
        try:
            check_promises(clients, lookups[epoch])
        except AssertionError as broken:
            yield f"watches: epoch {epoch}: {broken}"


def _changed_lookups(timeline: Timeline) -> Iterator[Lookup]:
    for answer in timeline.answers:
        if answer.again:
            continue
        header = answer.message.header
        for row in answer.message.routes:
            yield Lookup(header.epoch, header.revision, row.topic, row.route)
        for topic in answer.message.topics_not_found:
            yield Lookup(header.epoch, header.revision, topic, None)


def _lives(records: list[Record]) -> dict[str, list[list[WatchedStream]]]:
    """By epoch, what each watcher had: streams from one that started anew to the last that went on from it."""
    lives: dict[str, list[list[WatchedStream]]] = defaultdict(list)
    streams: dict[tuple[str, int], WatchedStream] = {}
    current: dict[str, list[WatchedStream]] = {}
    for record in of_kind(records, "watch"):
        key = record["watcher"], record["stream"]
        if record["event"] == "opened":
            streams[key] = WatchedStream(json_format.ParseDict(record["request"], pb.WatchTopicRoutesRequest()))
            continue
        stream = streams[key]
        stream.messages.append(json_format.ParseDict(record["message"], pb.WatchTopicRoutesResponse()))
        if len(stream.messages) == 1:  # streams that ended before their first message have no route
            if stream.resumes_after is None or key[0] not in current:
                current[key[0]] = []
                lives[stream.messages[0].header.epoch].append(current[key[0]])
            current[key[0]].append(stream)
    return lives


def check_clients(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """What route_client tells has no gaps, never goes back, and loses a route only by a decision."""
    last: dict[tuple[int, str], dict[str, Any]] = {}
    for record in sorted(of_kind(records, "told"), key=lambda record: float(record["seen_at"])):
        told, client = record["told"], record["client"]
        key, before, after = (record["pid"], told["topic"]), told["before"], told["after"]
        where = f"{client} about {told['topic']} at {record['seen_at']:.3f} s"
        known = last.get(key)
        if known is not None:
            if before is None or (known["route"], known["stale"]) != (before["route"], before["stale"]):
                yield f"clients: a gap, {where}"
            if known["origin"] == after["origin"] and after["revision"] < known["revision"]:
                yield f"clients: revisions went back, {where}"
        if before and before["groups"] and not after["groups"] and not _may_be_lost(told):
            yield f"clients: a route was lost without a reason, {where}"
        last[key] = after


def _may_be_lost(told: dict[str, Any]) -> bool:
    if told["before"]["stale"] == "held":
        return True
    real = [removal for removal in told["removals"] if removal["reason"] in REALLY_WENT]
    brokers = [(group, id_) for group, addrs in told["before"]["groups"].items() for id_, _ in addrs]
    return all(
        any(not removal["group"] or (removal["group"] == group and removal["id"] in {None, id_}) for removal in real)
        for group, id_ in brokers
    )


AGREE_SECONDS = 15.0
"""What pings take to find a lost connection (7 s), one period (3 s, 10 % more), and the rest for a busy machine."""
BOUNDS = {
    # Connections that may be on their way in or out when descriptors are counted.
    "files": 8,
    # Pools that gRPC grows and shrinks by itself.
    "threads": 8,
    # Calls that are open when tasks are counted. Only name servers tell of their tasks.
    "tasks": 16,
    # History of changes, memory that the allocator keeps.
    "rss_kib": 48 * 1024,
}
"""What a process may have more than before, by what a sample has."""


def check_agreement(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """The name servers agreed within the bound, on what is really there."""
    waits = list(of_kind(records, "agreed"))
    if not waits:
        yield "agreement: it was never looked at"
    for wait in waits:
        if wait["difference"]:
            yield f"agreement: not within {wait['seconds']:.1f} s at {wait['at']:.3f} s: {wait['difference']}"


def check_left_overs(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """Processes that lived all the time have the descriptors, threads, tasks and memory again that they had before."""
    before = {(s["name"], s["pid"]): s for s in of_kind(records, "sample") if s["phase"] == "before"}
    for sample in of_kind(records, "sample"):
        earlier = before.get((sample["name"], sample["pid"]))
        if sample["phase"] != "after" or earlier is None:
            continue
        for what in (what for what in BOUNDS if what in earlier):
            if sample[what] > earlier[what] + BOUNDS[what]:
                yield f"left over: {what} of {sample['name']} went from {earlier[what]} to {sample[what]}"
    for count in of_kind(records, "watches"):
        if count["open"] != count["expected"]:
            yield f"left over: {count['open']} watches are open, not {count['expected']}"


CHECKS: tuple[Callable[[list[Record], Timeline], Iterator[str]], ...] = (
    *(check_found, check_gone, check_whole, check_forward, check_writes),
    *(check_watches, check_clients, check_journal, check_agreement, check_left_overs),
)


def violations(records: list[Record]) -> list[str]:
    """What is broken, a line each; empty if all is well."""
    timeline = Timeline(records)
    return [violation for check in CHECKS for violation in check(records, timeline)]
