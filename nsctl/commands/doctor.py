"""The command ``nsctl doctor``: finds what is wrong with a fleet, and says what to do about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import grpc
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.channels import ClientFiles
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import NamesrvClient
from groundwork.printable import counted
from groundwork.topic_names import TopicKind as Kind
from groundwork.topic_names import kind_of
from nsctl.commands.change import all_intents
from nsctl.commands.compare import Held, digests, disagreements
from nsctl.commands.findings import Code, Finding, Severity
from nsctl.commands.history import Clock, clock_of, entries, reason_of
from nsctl.commands.show import all_routes, broker_groups, live_brokers
from nsctl.compare import in_force
from nsctl.health import INVOLUNTARY, LATE_SHARE
from nsctl.output import Format, iso
from nsctl.session import FOUND, WARNED, Session
from nsctl.tls_probe import TlsProblem, served_until, tls_problem

# Whether a name server can be talked to: that it answers, that client and server agree on TLS, when that will end.

ENDS_SOON_DAYS = 14
"""A certificate that ends within this time is told."""


def check_silence(endpoint: Endpoint, error: CallError, files: ClientFiles | None, timeout_seconds: float) -> Finding:
    """Why a name server did not answer, and what to do about that."""
    where = str(endpoint)
    problem = tls_problem(endpoint, files, timeout_seconds) if error.unreachable else None
    if problem is None:
        return Finding(Code.UNREACHABLE, where, str(error.error), "start it, or take it off the list")
    code = Code.CERTIFICATE_ENDED if problem is TlsProblem.ENDED else Code.TLS_REFUSED
    return Finding(code, where, problem.what, problem.do)


def check_certificate(server: NamesrvClient, files: ClientFiles) -> Iterator[Finding]:
    """When the certificate ends that a name server shows. One that cannot be reached has been told of already."""
    try:
        ends = served_until(server.endpoint, files, server.timeout_seconds)
    except OSError:
        return
    days = (ends - time.time()) / 86_400
    if days < ENDS_SOON_DAYS:
        what = f"its certificate ends in {days:,.1f} days"
        do = "renew it; the name server reads it again by itself"
        yield Finding(Code.CERTIFICATE_ENDS_SOON, str(server.endpoint), what, do)


# What one name server tells of itself: its status, its clock, the intents of operators that are in force.

SKEW_SECONDS = 1.0
"""A clock this far from ours is told, beyond the time that the call took."""
LAG_MILLIS = 1_000.0
"""An event loop that was held up for so long is told, as by the alert: calls waited for it, and deadlines are near."""
FORGOTTEN_MILLIS = 86_400_000
"""An intent without an end that is in force for so long may have been forgotten, as the alert says."""
SHOWN_INTENTS = 20
"""Intents of a name server that are listed one by one."""


def check_status(where: str, status: pb.GetNamesrvStatusResponse) -> Iterator[Finding]:
    """What a name server says of itself."""
    if not status.warm:
        what = "is warming: unknown topics are UNAVAILABLE there"
        yield Finding(Code.WARMING, where, what, "wait until its brokers are back")
    if status.guard_tripped:
        count = status.guarded_broker_count or status.unconfirmed_broker_count  # an older name server says the second
        until = f" until {iso(status.guard_ends_at_millis)}" if status.HasField("guard_ends_at_millis") else ""
        held = f"the mass-loss guard holds {counted(count, 'broker')} that vanished together{until}"
        do = "look at the network; `nsctl guard confirm-loss` if they are gone"
        yield Finding(Code.GUARD_HOLDS_BROKERS, where, held, do)
    elif status.unconfirmed_broker_count:
        held = counted(status.unconfirmed_broker_count, "broker")
        known = f"{held} known from its snapshot file only"
        yield Finding(Code.BROKERS_UNCONFIRMED, where, known, "wait for them, or see why their agents do not register")
    if status.HasField("replica") and not status.replica.leader_connected:
        lost = f"is a copy of {status.replica.leader}, which it has lost: {status.replica.problem}"
        do = "see whether that name server runs and can be reached from there"
        yield Finding(Code.LEADER_LOST, where, lost, do)
    if status.loop_lag_millis > LAG_MILLIS:
        lag = f"calls waited up to {status.loop_lag_millis / 1000:,.1f} s during the last minute: its event loop stood"
        yield Finding(Code.EVENT_LOOP_HELD_UP, where, lag, "give it more CPU, or see who calls it so much")
    if status.data_dir_problem:
        what = f"cannot write its data directory: {status.data_dir_problem}"
        do = "make room, or correct the rights: it tries again by itself; until then it may refuse changes by operators"
        yield Finding(Code.DATA_DIR_NOT_WRITTEN, where, what, do)


def check_clock(where: str, clock: Clock) -> Iterator[Finding]:
    """A name server's clock that is another than ours."""
    if clock.skew > SKEW_SECONDS:
        what = f"its clock is {clock.skew:,.1f} s {'behind' if clock.theirs < clock.began else 'ahead of'} ours"
        yield Finding(Code.CLOCK_SKEW, where, what, "set the clocks: times shown and ends of intents go by them")


def check_intents(where: str, intents: Sequence[admin_service_pb2.Intent], now_millis: float) -> Iterator[Finding]:
    """Intents of operators that are in force: who, when and why."""
    for intent in intents[:SHOWN_INTENTS]:
        yield _intent(where, intent, now_millis)
    if len(intents) > SHOWN_INTENTS:
        what = f"{len(intents) - SHOWN_INTENTS:,} more intents are in force"
        yield Finding(Code.INTENT_IN_FORCE, where, what, "`nsctl intents` lists all")


def _intent(where: str, intent: admin_service_pb2.Intent, now_millis: float) -> Finding:
    subject, lift = _subject(intent)
    ends = f", until {iso(intent.ends_at_millis)}" if intent.HasField("ends_at_millis") else ""
    why = f" ({intent.comment})" if intent.comment else ", no reason given"
    what = f"{subject} since {iso(intent.since_millis)} by {intent.caller or 'somebody'}{ends}{why}"
    forgotten = not ends and now_millis - intent.since_millis > FORGOTTEN_MILLIS
    return Finding(Code.INTENT_FORGOTTEN if forgotten else Code.INTENT_IN_FORCE, where, what, lift)


def _subject(intent: admin_service_pb2.Intent) -> tuple[str, str]:
    """The intent in words, and how to lift it."""
    cluster = f" --cluster {intent.cluster_name}" if intent.HasField("cluster_name") else ""
    if intent.kind == admin_service_pb2.Intent.KIND_TOPIC_HOLD:
        return f"topic {intent.topic} is held back", f"`nsctl release-topic {intent.topic}{cluster}` lifts it"
    if intent.kind == admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM:
        return f"{intent.broker_name} is drained", f"`nsctl restore {intent.broker_name}{cluster}` lifts it"
    if intent.kind == admin_service_pb2.Intent.KIND_ADD_WRITE_PERM:
        drain = f"nsctl drain {intent.broker_name}{cluster}"
        return f"{intent.broker_name} may be written whatever it reports", f"`{drain}, then nsctl restore` lifts it"
    return f"{intent.topic or intent.broker_name} has an intent of an unknown kind", "a newer nsctl shows it"


# What the tables of one name server tell: brokers, their groups, topics, and brokers that left against their will.

SHOWN_TOPICS = 5
"""Topics named in one line."""
SHOWN_LOSSES = 10
"""Losses of brokers that are told one by one, the newest first."""
LOSS_MILLIS = 3_600_000
"""How far back losses are told."""
MOST_ENTRIES = 5_000
"""Entries of the journal that are looked at: more than an hour of a busy fleet has."""

WRITE, READ = 2, 4


def check_liveness(where: str, lives: list[route_data_pb2.BrokerLiveInfo], now: float) -> Iterator[Finding]:
    """Brokers that are late, that nobody watches, and groups of slaves only.

    Args:
        where: The name server.
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


def check_names(server: NamesrvClient, lives: list[route_data_pb2.BrokerLiveInfo]) -> Iterator[Finding]:
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


def check_topics(server: NamesrvClient) -> Iterator[Finding]:
    """Topics that nobody can write, though they are there for somebody."""
    unwritable = [named.topic for named in all_routes(server) if lacks_writable_queue(named.route)]
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


def check_losses(server: NamesrvClient, now_millis: float) -> Iterator[Finding]:
    """Brokers that left against their will within the last hour, with the reason, and whether they are back."""
    request = admin_service_pb2.ListAuditEntriesRequest(from_millis=int(now_millis - LOSS_MILLIS), page_size=500)
    lost = [entry for entry in islice(entries(server, request), MOST_ENTRIES) if entry.removal_reason in INVOLUNTARY]
    if not lost:
        return
    back = {live.broker_addr for live in live_brokers(server) if not live.unconfirmed}
    yield from check_entries(str(server.endpoint), lost, back)


def _do(entry: admin_service_pb2.AuditEntry) -> str:
    """What to do about a broker that is not there."""
    if entry.removal_reason == route_data_pb2.REMOVAL_REASON_BROKER_DOWN:
        return "start the broker; its agent is there"
    return "see the log of its agent, and its machine"


def check_entries(where: str, lost: list[admin_service_pb2.AuditEntry], back: Iterable[str]) -> Iterator[Finding]:
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


# The command ``nsctl doctor``.


class Checked(NamedTuple):
    """What one name server told."""

    status: pb.GetNamesrvStatusResponse
    findings: list[Finding]
    held: Held


def doctor(session: Session) -> None:
    """Looks for what is wrong with the fleet and says what to do; exit code 1 for a problem, 5 for a warning."""
    files = None if session.security is None else session.security.files
    findings: list[Finding] = []
    checked: list[Checked] = []
    for answer in session.servers.each(_check):
        if answer.value is None:
            assert answer.error is not None
            findings.append(check_silence(answer.endpoint, answer.error, files, session.timeout_seconds))
        else:
            findings += answer.value.findings
            checked.append(answer.value)
    if files is not None:
        for server in session.servers.all:
            findings += check_certificate(server, files)
    findings += together(checked)
    rows = [finding.row() for finding in sorted(findings, key=lambda finding: finding.order)]
    if rows or session.form is not Format.TABLE:
        session.show(rows, ("severity", "code", "about", "what", "do"))
    if not rows:
        session.note(f"nothing found at {len(checked)} name servers")
    session.found(exit_code(findings))


def exit_code(findings: Iterable[Finding]) -> int:
    """By the worst of them: a problem, a warning, or nothing to worry about."""
    worst = min((finding.code.severity for finding in findings), default=Severity.INFO)
    return {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}[worst]


def _check(server: NamesrvClient) -> Checked:
    status = server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())
    assert isinstance(status, pb.GetNamesrvStatusResponse)
    where = str(server.endpoint)
    clock = clock_of(server)
    found = [*check_status(where, status), *check_clock(where, clock)]
    lives = list(live_brokers(server))
    found += check_liveness(where, lives, clock.theirs)
    found += check_names(server, lives)
    found += check_topics(server)
    held = Held(digests(server), None)
    try:
        found += check_losses(server, clock.theirs * 1000)
        intents = list(all_intents(server))
        found += check_intents(where, intents, clock.theirs * 1000)
        held = held._replace(intents=in_force(intents))
    except CallError as error:
        if error.error.code is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        what = "does not let you read its journal and the intents in force"
        found.append(Finding(Code.NOT_ALLOWED, where, what, "show a certificate or token that may administer"))
    return Checked(status, found, held)


def together(checked: Sequence[Checked]) -> Iterator[Finding]:
    """What is wrong with the name servers together."""
    versions = sorted({one.status.version for one in checked})
    if len(versions) > 1:
        what = f"name servers of versions {', '.join(versions)}"
        yield Finding(Code.VERSIONS_DIFFER, "all", what, "finish the upgrade")
    names = [one.status.header.namesrv_name for one in checked]
    for name in sorted({name for name in names if names.count(name) > 1}):
        what = f"two name servers call themselves {name}"
        yield Finding(Code.SAME_NAME_TWICE, "all", what, "give each a --name of its own")
    if any(disagreements([one.held for one in checked])):
        what = "name servers do not hold the same brokers, topics and intents"
        yield Finding(Code.NAME_SERVERS_DISAGREE, "all", what, "`nsctl diff` says which")
