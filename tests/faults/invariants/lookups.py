"""Invariants of lookups: found while its broker lives, gone when it is, whole and never older than before."""

from __future__ import annotations

from collections.abc import Iterator

from namesrv_api.v1 import route_service_pb2 as pb

from tests.faults.fleet.fleet import BROKERS, EXPIRY_SECONDS, ROCKETMQ
from tests.faults.fleet.operator import HELD_TOPIC
from tests.faults.history import Record
from tests.faults.invariants.timeline import Timeline

SILENT_SECONDS = EXPIRY_SECONDS + 6.0
"""How long a broker of RocketMQ may be in routes that is stopped or cut off: its protocol has no pings, so only silence
tells of it (one scan more, and a busy machine). The end of its process is told by its connection."""
GONE_SECONDS = 15.0
"""How long a lost broker may be in routes: pings find it after 7 s (1 + 6), the rest is for a machine that is busy."""
DOUBTED_SECONDS = 80.0
"""... by a name server that did not run itself meanwhile, after it ran again: a minute, and more for a busy machine."""
AFTERMATH_SECONDS = 11.0
"""After a fault has ended, what it did may still be noticed for so long: a connection may turn out to be lost. For
brokers of RocketMQ it is ``SILENT_SECONDS``."""

BY_NAME = {broker.name: broker for broker in (*BROKERS, *ROCKETMQ)}
MASTERS = {broker.group: broker for broker in BY_NAME.values() if broker.broker_id == 0}


def check_found(records: list[Record], timeline: Timeline) -> Iterator[str]:
    """No NOT_FOUND for a topic that was there and whose master has been registered and heard of ever since.

    Whatever happens to the name server meanwhile is no excuse: it may not answer, or say that it is warming up.
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
