"""The command ``nsctl doctor``: finds what is wrong with a fleet, and says what to do about it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from shlex import quote
from typing import NamedTuple

import grpc
from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import Intent
from namesrv_internal.v1 import diagnostics_service_pb2

from groundwork.channels import ClientFiles
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import NamesrvClient
from groundwork.printable import counted
from groundwork.topic_names import is_application
from nsctl.commands.compare import Held, digests, disagreements
from nsctl.commands.findings import Code, Finding, Severity
from nsctl.commands.history import Clock, clock_of, entries, reason_of
from nsctl.commands.show import all_intents, all_routes, broker_groups, group_names, live_brokers
from nsctl.compare import in_force
from nsctl.health import INVOLUNTARY, LATE_SHARE
from nsctl.output import Format, iso
from nsctl.session import FOUND, WARNED, Session
from nsctl.tls_probe import TlsProblem, served_until, tls_problem
from nsctl.writable import drains, lacks_writable_queue

# Whether a name server can be talked to: that it answers, that client and server agree on TLS, when that will end.

ENDS_SOON_DAYS = 14
"""A certificate that ends within this time is told."""


def check_silence(endpoint: Endpoint, error: CallError, files: ClientFiles | None, timeout_seconds: float) -> Finding:
    """Why a name server did not answer, and what to do about that."""
    where = str(endpoint)
    problem = tls_problem(endpoint, files, timeout_seconds) if error.unreachable else None
    if problem is None and error.error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        what = f"did not answer within {timeout_seconds:g} s"
        return Finding(Code.UNREACHABLE, where, what, "see whether its process hangs, or the network drops packets")
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
    if status.data_dir_problem:
        what = f"cannot write its data directory: {status.data_dir_problem}"
        do = "make room, or correct the rights: it tries again by itself; until then it may refuse changes by operators"
        yield Finding(Code.DATA_DIR_NOT_WRITTEN, where, what, do)


def check_diagnostics(where: str, told: diagnostics_service_pb2.GetDiagnosticsResponse) -> Iterator[Finding]:
    """Problems of a name server's process."""
    if told.loop_lag_millis > LAG_MILLIS:
        lag = f"calls waited up to {told.loop_lag_millis / 1000:,.1f} s during the last minute: its event loop stood"
        yield Finding(Code.EVENT_LOOP_HELD_UP, where, lag, "give it more CPU, or see who calls it so much")


def check_clock(where: str, clock: Clock) -> Iterator[Finding]:
    """A name server's clock that is another than ours."""
    if clock.skew > SKEW_SECONDS:
        what = f"its clock is {clock.skew:,.1f} s {'behind' if clock.theirs < clock.began else 'ahead of'} ours"
        yield Finding(Code.CLOCK_SKEW, where, what, "set the clocks: times shown and ends of intents go by them")


def check_intents(where: str, intents: Sequence[Intent], now_millis: float) -> Iterator[Finding]:
    """Intents of operators that are in force: who, when and why."""
    for intent in intents[:SHOWN_INTENTS]:
        yield _intent(where, intent, now_millis)
    if len(intents) > SHOWN_INTENTS:
        what = f"{len(intents) - SHOWN_INTENTS:,} more intents are in force"
        yield Finding(Code.INTENT_IN_FORCE, where, what, "`nsctl intents` lists all")


def _intent(where: str, intent: Intent, now_millis: float) -> Finding:
    subject, lift = _subject(intent)
    why = f" ({intent.comment})" if intent.comment else ", no reason given"
    what = f"{subject} since {iso(intent.since_millis)} by {intent.caller or 'somebody'},{_until(intent)}{why}"
    forgotten = not intent.HasField("ends_at_millis") and now_millis - intent.since_millis > FORGOTTEN_MILLIS
    return Finding(Code.INTENT_FORGOTTEN if forgotten else Code.INTENT_IN_FORCE, where, what, lift)


def _until(intent: Intent) -> str:
    return f" until {iso(intent.ends_at_millis)}" if intent.HasField("ends_at_millis") else " with no end"


def _subject(intent: Intent) -> tuple[str, str]:
    """The intent in words, and how to lift it."""
    cluster = f" --cluster {quote(intent.cluster_name)}" if intent.HasField("cluster_name") else ""
    broker = quote(intent.broker_name)
    if intent.kind == Intent.KIND_TOPIC_HOLD:
        return f"topic {intent.topic} is held back", f"`nsctl release-topic {quote(intent.topic)}{cluster}` lifts it"
    if intent.kind == Intent.KIND_WIPE_WRITE_PERM:
        return f"planned: {intent.broker_name} is drained", f"`nsctl restore {broker}{cluster}` lifts it"
    if intent.kind == Intent.KIND_ADD_WRITE_PERM:
        lift = f"`nsctl drain {broker}{cluster}`, then `nsctl restore {broker}{cluster}` lifts it"
        return f"{intent.broker_name} may be written whatever it reports", lift
    return f"{intent.topic or intent.broker_name} has an intent of an unknown kind", "a newer nsctl shows it"


# What the tables of one name server tell: brokers, their groups, topics, and brokers that left against their will.

SHOWN_TOPICS = 5
"""Topics named in one line."""
SHOWN_DRAINS = 3
"""Brokers named with a line about drained topics; more are counted."""
SHOWN_DOUBTED = 3
"""Doubted brokers named in one line."""
SHOWN_LOSSES = 10
"""Losses of brokers that are told one by one, the newest first."""
LOSS_MILLIS = 3_600_000
"""How far back losses are told."""
MOST_ENTRIES = 5_000
"""Entries of the journal that are looked at: more than an hour of a busy fleet has."""


def check_liveness(where: str, lives: list[route_data_pb2.BrokerLiveInfo], now: float) -> Iterator[Finding]:
    """Brokers that are late, doubted, that nobody watches, and groups of slaves only.

    Args:
        where: The name server.
        now: The time by the clock of the name server, as the times of its brokers; seconds since the Unix epoch.
    """
    groups: dict[tuple[str, str], list[route_data_pb2.BrokerLiveInfo]] = {}
    doubted: dict[Code, list[route_data_pb2.BrokerLiveInfo]] = {}
    for live in lives:
        if live.HasField("doubt_ends_at_millis"):
            is_planned = live.doubt_reason == route_data_pb2.DOUBT_REASON_HANDED_OVER
            doubted.setdefault(Code.BROKERS_HANDED_OVER if is_planned else Code.BROKERS_DOUBTED, []).append(live)
    for code, brokers in doubted.items():
        yield _doubted(code, where, brokers, now)
    for live in lives:
        groups.setdefault((live.cluster_name, live.broker_name), []).append(live)
        silent = now * 1000 - live.last_update_timestamp_millis
        explained = live.unconfirmed or live.HasField("doubt_ends_at_millis")
        if silent > live.heartbeat_timeout_millis * LATE_SHARE and not explained:
            what = f"{live.broker_name} ({live.broker_addr}) was heard of {silent / 1000:,.0f} s ago"
            yield Finding(Code.BROKER_SILENT, where, what, f"see {_log_of(live)}")
        if not live.has_channel and not live.unconfirmed:
            what = f"{live.broker_name} ({live.broker_addr}) has no channel: its death shows only after its timeout"
            yield Finding(Code.BROKER_WITHOUT_CHANNEL, where, what, "run the broker agent beside it")
    for (cluster, name), members in groups.items():
        if all(live.broker_id != 0 for live in members):
            what = f"group {name} of {cluster} has no master: {counted(len(members), 'slave')}"
            yield Finding(Code.GROUP_WITHOUT_MASTER, where, what, "start the master, or promote a slave")


def _doubted(code: Code, where: str, lives: Sequence[route_data_pb2.BrokerLiveInfo], now: float) -> Finding:
    """Brokers that stay though their channel has ended, and that may be dead."""
    named = ", ".join(f"{live.broker_name} ({live.broker_addr})" for live in lives[:SHOWN_DOUBTED])
    more = ", ..." if len(lives) > SHOWN_DOUBTED else ""
    left = max(0.0, max(live.doubt_ends_at_millis for live in lives) / 1000 - now)
    if code is Code.BROKERS_HANDED_OVER:
        how, do = "handed over for a restart of the agent, which is planned", "wait until the agent is back"
    else:
        how = "doubted"
        do = "wait: a live broker registers again; `nsctl drain BROKER` keeps producers away from a dead one"
    are, last = ("is", "it") if len(lives) == 1 else ("are", "the last")
    what = f"{counted(len(lives), 'broker')} {are} {how}: {named}{more}"
    left_in = f"{last} leaves in {left:,.0f} s unless it registers again"
    return Finding(code, where, f"{what}; {left_in}", do)


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


def check_topics(
    where: str, routes: Iterable[pb.NamedTopicRoute], named_after: Collection[str], intents: Iterable[Intent]
) -> Iterator[Finding]:
    """Topics of applications that nobody can write, apart from those that operators decided to drain.

    Args:
        where: The name server.
        routes: Routes of all topics.
        named_after: Clusters and brokers, which have topics of their own name.
        intents: Intents that are in force.
    """
    drained = drains(intents)
    unwritable: list[str] = []
    planned: list[str] = []
    for named in routes:
        if lacks_writable_queue(named.route) and is_application(named.topic, named_after):
            (unwritable if lacks_writable_queue(named.route, drained) else planned).append(named.topic)
    if unwritable:
        what = f"{_lacking(unwritable)} no writable queue with a master: {_named(unwritable)}"
        explain = f"nsctl explain {quote(min(unwritable))}"
        yield Finding(Code.TOPICS_NOT_WRITABLE, where, what, f"`{explain}` says why", explain)
    if planned:
        what = f"planned: {_lacking(planned)} no writable queue {_while(list(drained.values()))}: {_named(planned)}"
        yield Finding(Code.TOPICS_DRAINED, where, what, "producers of these wait for the end of the drain")


def _lacking(topics: Sequence[str]) -> str:
    return f"{counted(len(topics), 'topic')} {'has' if len(topics) == 1 else 'have'}"


def _named(topics: Sequence[str]) -> str:
    return ", ".join(sorted(topics)[:SHOWN_TOPICS]) + (", ..." if len(topics) > SHOWN_TOPICS else "")


def _while(drained: Sequence[Intent]) -> str:
    """Which brokers are drained, and until when."""
    if len(drained) > SHOWN_DRAINS:
        return f"while {len(drained):,} brokers are drained"
    brokers = ", ".join(f"{one.broker_name}{_until(one)}" for one in drained)
    return f"while {'brokers are' if len(drained) > 1 else 'a broker is'} drained ({brokers})"


def check_losses(server: NamesrvClient, now_millis: float) -> Iterator[Finding]:
    """Brokers that left against their will within the last hour, with the reason, and whether they are back."""
    request = admin_service_pb2.ListAuditEntriesRequest(from_millis=int(now_millis - LOSS_MILLIS), page_size=500)
    lost = [entry for entry in islice(entries(server, request), MOST_ENTRIES) if entry.removal_reason in INVOLUNTARY]
    if not lost:
        return
    back = [live for live in live_brokers(server) if not live.unconfirmed]
    yield from check_entries(str(server.endpoint), lost, back)


def _log_of(live: route_data_pb2.BrokerLiveInfo) -> str:
    """The log that says why a broker was silent: RocketMQ's brokers register themselves."""
    return "its own log: it registers itself" if live.topic_by_topic else "the log of its agent"


def _do(entry: admin_service_pb2.AuditEntry) -> str:
    """What to do about a broker that is not there."""
    if entry.removal_reason == route_data_pb2.REMOVAL_REASON_BROKER_DOWN:
        return "start the broker; its agent is there"
    return "see its machine, its own log, and the log of its agent if it has one"


def check_entries(
    where: str, lost: list[admin_service_pb2.AuditEntry], back: Iterable[route_data_pb2.BrokerLiveInfo]
) -> Iterator[Finding]:
    """Findings of the journal's entries, the newest first; ``back`` has the brokers that are there."""
    there = [(f"({live.broker_addr}, id ", live) for live in back]
    for entry in lost[:SHOWN_LOSSES]:
        what = f"{iso(entry.applied_at_millis)} {reason_of(entry)}: {entry.summary}"
        again = [live for text, live in there if text in entry.summary] if entry.removed_broker_count == 1 else []
        if again:
            yield Finding(Code.BROKER_CAME_BACK, where, what, f"it is back; for the reason see {_log_of(again[0])}")
        else:
            yield Finding(Code.BROKER_LOST, where, what, _do(entry))
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
        session.note(f"nothing found at {counted(len(checked), 'name server')}")
    session.found(exit_code(findings))


def exit_code(findings: Iterable[Finding]) -> int:
    """By the worst of them: a problem, a warning, or nothing to worry about."""
    worst = min((finding.code.severity for finding in findings), default=Severity.INFO)
    return {Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}[worst]


def _check(server: NamesrvClient) -> Checked:
    status = server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())
    assert isinstance(status, pb.GetNamesrvStatusResponse)
    where = str(server.endpoint)
    told = server.call("GetDiagnostics", diagnostics_service_pb2.GetDiagnosticsRequest())
    assert isinstance(told, diagnostics_service_pb2.GetDiagnosticsResponse)
    clock = clock_of(server)
    found = [*check_status(where, status), *check_diagnostics(where, told), *check_clock(where, clock)]
    lives = list(live_brokers(server))
    found += check_liveness(where, lives, clock.theirs)
    found += check_names(server, lives)
    held = Held(digests(server), None)
    intents: list[Intent] = []
    try:
        found += check_losses(server, clock.theirs * 1000)
        intents += all_intents(server)
        found += check_intents(where, intents, clock.theirs * 1000)
        held = held._replace(intents=in_force(intents))
    except CallError as error:
        if error.error.code is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        what = "does not let you read its journal and the intents in force"
        found.append(Finding(Code.NOT_ALLOWED, where, what, "show a certificate or token that may administer"))
    found += check_topics(where, all_routes(server), group_names(server), intents)
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
