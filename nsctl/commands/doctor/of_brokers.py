"""What the tables of one name server tell: brokers, their groups, topics, and brokers that left against their will."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.namesrv_client import NamesrvClient
from groundwork.printable import counted
from groundwork.topic_names import TopicKind as Kind
from groundwork.topic_names import kind_of
from nsctl.commands.diagnose import entries
from nsctl.commands.diff import BATCH
from nsctl.commands.doctor.findings import Code, Finding
from nsctl.commands.read import TopicKind, broker_groups, live_brokers, topic_names
from nsctl.journal import INVOLUNTARY, reason_of
from nsctl.output import iso

LATE_SHARE = 0.5
"""A broker that has used up this share of its timeout is told: its agent has missed registrations."""
SHOWN_TOPICS = 5
"""Topics named in one line."""
SHOWN_LOSSES = 10
"""Losses of brokers that are told one by one, the newest first."""
LOSS_MILLIS = 3_600_000
"""How far back losses are told."""
MOST_ENTRIES = 5_000
"""Entries of the journal that are looked at: more than an hour of a busy fleet has."""

WRITE, READ = 2, 4


def of_lives(where: str, lives: list[route_data_pb2.BrokerLiveInfo], now: float) -> Iterator[Finding]:
    """Brokers that are late, that nobody watches, and groups of slaves only.

    Args:
        where: The name server.
        lives: All its brokers.
        now: The time by the clock of the name server, as the times of its brokers; seconds since the Unix epoch.
    """
    groups: dict[tuple[str, str], list[route_data_pb2.BrokerLiveInfo]] = {}
    for live in lives:
        groups.setdefault((live.cluster_name, live.broker_name), []).append(live)
        silent = now * 1000 - live.last_update_timestamp_millis
        if silent > live.heartbeat_timeout_millis * LATE_SHARE and not live.unconfirmed:
            what = f"{live.broker_name} ({live.broker_addr}) was heard of {silent / 1000:,.0f} s ago"
            yield Finding(Code.BROKER_SILENT, where, what, "see the log of its agent")
        if not live.has_channel and not live.unconfirmed:
            what = f"{live.broker_name} ({live.broker_addr}) has no channel: its death shows only after its timeout"
            yield Finding(Code.BROKER_WITHOUT_CHANNEL, where, what, "run the broker agent beside it")
    for (cluster, name), members in groups.items():
        if all(live.broker_id != 0 for live in members):
            what = f"group {name} of {cluster} has no master: {counted(len(members), 'slave')}"
            yield Finding(Code.GROUP_WITHOUT_MASTER, where, what, "start the master, or promote a slave")


def of_names(server: NamesrvClient, lives: list[route_data_pb2.BrokerLiveInfo]) -> Iterator[Finding]:
    """Groups of one name in several clusters. What names groups without a cluster cannot tell them apart."""
    groups = {(live.cluster_name, live.broker_name) for live in lives}
    if len({name for _, name in groups}) == len(groups):
        return
    clusters: dict[str, list[str]] = {}
    for group in broker_groups(server):
        clusters.setdefault(group.broker_name, []).append(group.cluster_name)
    for name, (first, *others) in clusters.items():
        if others:
            what = f"group {name} is in {len(others) + 1} clusters: RocketMQ's clients see that of {first} only"
            yield Finding(Code.GROUP_NAME_TWICE, str(server.endpoint), what, f"rename it in {', '.join(others)}")


def of_topics(server: NamesrvClient) -> Iterator[Finding]:
    """Topics that nobody can write, though they are there for somebody."""
    names = list(topic_names(server, None, TopicKind.ALL))
    unwritable: list[str] = []
    for start in range(0, len(names), BATCH):
        answer = server.call("BatchGetTopicRoutes", pb.BatchGetTopicRoutesRequest(topics=names[start : start + BATCH]))
        assert isinstance(answer, pb.BatchGetTopicRoutesResponse)
        unwritable += [named.topic for named in answer.routes if lacks_writable_queue(named.route)]
    if unwritable:
        owners = {name for group in broker_groups(server) for name in (group.cluster_name, group.broker_name)}
        unwritable.sort(key=lambda topic: kind_of(topic, owners) is not Kind.NORMAL)  # an application's come first
        some = ", ".join(unwritable[:SHOWN_TOPICS]) + (", ..." if len(unwritable) > SHOWN_TOPICS else "")
        have = "topic has" if len(unwritable) == 1 else "topics have"
        what = f"{len(unwritable):,} {have} no writable queue with a master: {some}"
        explain = f"nsctl explain {unwritable[0]}"
        yield Finding(Code.TOPICS_NOT_WRITABLE, str(server.endpoint), what, f"`{explain}` says why", explain)


def lacks_writable_queue(route: route_data_pb2.TopicRouteData) -> bool:
    """Whether nobody can write a topic that somebody is meant to.

    A topic that may be neither read nor written on any broker is none of these: RocketMQ's brokers of release 5 have
    one each (``rmq_sys_SYNC_BROKER_MEMBER_…``, permission 1).
    """
    if not any(queues.perm & (READ | WRITE) for queues in route.queue_datas):
        return False
    masters = {
        (group.cluster_name, group.broker_name)
        for group in route.broker_datas
        if any(broker.broker_id == 0 for broker in group.broker_addrs)
    }
    return not any(
        queues.write_queue_nums > 0 and queues.perm & WRITE and (queues.cluster_name, queues.broker_name) in masters
        for queues in route.queue_datas
    )


def of_losses(server: NamesrvClient, now_millis: float) -> Iterator[Finding]:
    """Brokers that left against their will within the last hour, with the reason, and whether they are back."""
    request = admin_service_pb2.ListAuditEntriesRequest(from_millis=int(now_millis - LOSS_MILLIS), page_size=500)
    lost = [entry for entry in islice(entries(server, request), MOST_ENTRIES) if entry.removal_reason in INVOLUNTARY]
    if not lost:
        return
    back = {live.broker_addr for live in live_brokers(server) if not live.unconfirmed}
    yield from of_entries(str(server.endpoint), lost, back)


def _do(entry: admin_service_pb2.AuditEntry) -> str:
    """What to do about a broker that is not there."""
    if entry.removal_reason == route_data_pb2.REMOVAL_REASON_BROKER_DOWN:
        return "start the broker; its agent is there"
    return "see the log of its agent, and its machine"


def of_entries(where: str, lost: list[admin_service_pb2.AuditEntry], back: Iterable[str]) -> Iterator[Finding]:
    """Findings of the journal's entries, the newest first; ``back`` has the addresses of brokers that are there."""
    addresses = [f"({addr}, id " for addr in back]
    for entry in lost[:SHOWN_LOSSES]:
        is_back = entry.removed_broker_count == 1 and any(addr in entry.summary for addr in addresses)
        code = Code.BROKER_CAME_BACK if is_back else Code.BROKER_LOST
        what = f"{iso(entry.applied_at_millis)} {reason_of(entry)}: {entry.summary}"
        yield Finding(code, where, what, "it is back; see the log of its agent for why" if is_back else _do(entry))
    if len(lost) > SHOWN_LOSSES:
        older = lost[SHOWN_LOSSES:]
        count = sum(entry.removed_broker_count for entry in older)
        reasons = ", ".join(f"{number} {reason}" for reason, number in Counter(map(reason_of, older)).most_common())
        what = f"{count:,} more brokers left within the hour ({reasons})"
        yield Finding(Code.BROKER_LOST, where, what, "look for what they have in common")
