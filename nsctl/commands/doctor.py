"""The command ``nsctl doctor``: finds what is wrong with a fleet, and says what to do about it."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from shlex import quote
from typing import NamedTuple

from namesrv_api.v1 import admin_service_pb2, route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import Intent
from namesrv_internal.v1 import diagnostics_service_pb2

from namesrv_common.client.channels import ClientFiles
from namesrv_common.endpoints import Endpoint, unreachable_addresses
from namesrv_common.printable import counted
from namesrv_common.topic_names import is_application
from nsctl.commands.compare import disagreements
from nsctl.findings import Code, Finding, Severity, first_few, merged
from nsctl.held import (
    BrokerKey,
    Clock,
    GroupKey,
    Held,
    caller_of,
    drains,
    group_of,
    intent_key,
    lacks_writable_queue,
    read,
    until,
)
from nsctl.output import iso, row
from nsctl.session import FOUND, WARNED, Session, check_silence

# What one name server says of itself: its status, its process, its clock, the intents of operators in force.

SKEW_SECONDS = 1.0
"""Difference of clocks that is reported, beyond the time of the call."""
LAG_MILLIS = 1_000.0
"""An event loop that was blocked for so long is a finding, as of the alert: calls waited for it."""
REFUSED_MILLIS = 120_000
"""How far back refused registrations are told: RocketMQ's brokers register every 30 s."""
FORGOTTEN_MILLIS = 86_400_000
"""An intent without an end that is in force for so long may have been forgotten, as the alert says."""
SHOWN_INTENTS = 20
"""Intents of a name server that are listed one by one."""


def check_status(status: pb.GetNamesrvStatusResponse) -> Iterator[Finding]:
    """What a name server says of itself."""
    if not status.warm:
        yield Finding(Code.WARMING, "is warming: unknown topics are UNAVAILABLE there")
    if status.guard_tripped:
        count = status.guarded_broker_count
        until = f" until {iso(status.guard_ends_at_millis)}" if status.HasField("guard_ends_at_millis") else ""
        held = f"the mass-loss guard keeps {counted(count, 'broker')} in the routes that vanished together{until}"
        do = "look at the network; `nsctl guard drop` if they are gone"
        yield Finding(Code.GUARD_HOLDS_BROKERS, held, do)
    elif status.unconfirmed_broker_count:
        held = counted(status.unconfirmed_broker_count, "broker")
        yield Finding(Code.BROKERS_UNCONFIRMED, f"{held} known from its snapshot file only")
    if status.data_dir_problem:
        what = f"cannot write its data directory: {status.data_dir_problem}"
        do = "make room, or correct the rights: it tries again by itself; until then it may refuse changes by operators"
        yield Finding(Code.DATA_DIR_NOT_WRITTEN, what, do)


def check_diagnostics(told: diagnostics_service_pb2.GetDiagnosticsResponse) -> Iterator[Finding]:
    """Problems of a name server's process, and of what brokers send it."""
    if told.loop_lag_millis > LAG_MILLIS:
        lag = f"calls waited up to {told.loop_lag_millis / 1000:,.1f} s during the last minute: its event loop stood"
        yield Finding(Code.EVENT_LOOP_HELD_UP, lag)
    if told.HasField("refused_ago_millis") and told.refused_ago_millis < REFUSED_MILLIS:
        yield Finding(Code.REGISTRATIONS_REFUSED, "refuses registrations of brokers, which have no routes then")
    if told.HasField("skipped_ago_millis") and told.skipped_ago_millis < REFUSED_MILLIS:
        yield Finding(Code.TOPICS_SKIPPED, "leaves topics out of registrations, so they have no route")


def check_clock(clock: Clock) -> Iterator[Finding]:
    """A name server's clock that differs from this machine's."""
    if clock.skew > SKEW_SECONDS:
        what = f"its clock is {clock.skew:,.1f} s {'behind' if clock.theirs < clock.began else 'ahead of'} ours"
        yield Finding(Code.CLOCK_SKEW, what)


def check_intents(intents: Sequence[Intent], now_millis: float) -> Iterator[Finding]:
    """Intents of operators that are in force: who, when and why."""
    for intent in intents[:SHOWN_INTENTS]:
        subject, lift = _subject(intent)
        why = f" ({intent.comment})" if intent.comment else ", no reason given"
        by = caller_of(intent.caller) or "somebody"
        what = f"{subject} since {iso(intent.since_millis)} by {by}, {until(intent, 'with no end')}{why}"
        forgotten = not intent.HasField("ends_at_millis") and now_millis - intent.since_millis > FORGOTTEN_MILLIS
        code = Code.INTENT_FORGOTTEN if forgotten else Code.INTENT_IN_FORCE
        yield Finding(code, what, lift, subject=(intent_key(intent), intent.comment, intent.ends_at_millis))
    if len(intents) > SHOWN_INTENTS:
        yield Finding(Code.INTENT_IN_FORCE, f"{len(intents) - SHOWN_INTENTS:,} more intents are in force")


def _subject(intent: Intent) -> tuple[str, str]:
    """The intent in words, and how to lift it."""
    cluster = f" --cluster {quote(intent.cluster_name)}" if intent.HasField("cluster_name") else ""
    broker = quote(intent.broker_name)
    if intent.kind == Intent.KIND_TOPIC_HOLD:
        return f"topic {intent.topic} is held back", f"`nsctl unhold-topic {quote(intent.topic)}{cluster}` lifts it"
    if intent.kind == Intent.KIND_WIPE_WRITE_PERM:
        return f"planned: {intent.broker_name} is drained", f"`nsctl undrain {broker}{cluster}` lifts it"
    if intent.kind == Intent.KIND_ADD_WRITE_PERM:
        lift = f"`nsctl drain {broker}{cluster}`, then `nsctl undrain {broker}{cluster}` lifts it"
        return f"{intent.broker_name} may be written whatever it reports", lift
    return f"{intent.topic or intent.broker_name} has an intent of an unknown kind", "a newer nsctl shows it"


# What the tables of one name server tell: brokers, their groups, topics.

LATE_SHARE = 0.5
"""A broker that has used up this share of its timeout is late: its agent has missed registrations."""


def check_liveness(lives: Collection[route_data_pb2.BrokerLiveInfo], now: float) -> Iterator[Finding]:
    """Brokers that are late, that nobody watches or that clients cannot reach, and groups of slaves only.

    Args:
        lives: The live brokers.
        now: The time by the clock that the times of the brokers are of; seconds since the Unix epoch.
    """
    groups: dict[GroupKey, list[route_data_pb2.BrokerLiveInfo]] = {}
    for live in lives:
        groups.setdefault(group_of(live), []).append(live)
        silent = now * 1000 - live.last_update_timestamp_millis
        explained = live.unconfirmed or live.HasField("doubt_ends_at_millis")
        who = f"{live.broker_name} ({live.broker_addr})"
        if silent > live.heartbeat_timeout_millis * LATE_SHARE and not explained:
            drain = f"nsctl drain {quote(live.broker_name)} --cluster {quote(live.cluster_name)}"
            log = "its own log" if live.topic_by_topic else "the log of its agent"
            do = f"`{drain}` keeps producers away; then see {log}"
            yield Finding(Code.BROKER_SILENT, f"{who} was last seen {silent / 1000:,.0f} s ago", do, subject=who)
        if not live.has_channel and not live.unconfirmed:
            what = f"{who} has no channel: its death shows only after its timeout"
            yield Finding(Code.BROKER_WITHOUT_CHANNEL, what)
    unreachable = set(unreachable_addresses(one.broker_addr for one in lives))
    if odd := [one for one in lives if one.broker_addr in unreachable]:
        who = first_few([f"{one.broker_name} ({one.broker_addr})" for one in odd])
        what = f"{counted(len(odd), 'broker')} registered an address that other machines cannot call: {who}"
        yield Finding(Code.BROKER_ADDRESS_LOCAL, what)
    for (cluster, name), members in groups.items():
        if all(live.broker_id != 0 for live in members):
            what = f"group {name} of {cluster} has no master: {counted(len(members), 'slave')}"
            yield Finding(Code.GROUP_WITHOUT_MASTER, what)


def check_names(groups: Iterable[GroupKey]) -> Iterator[Finding]:
    """Groups of one name in several clusters. A client that names groups without a cluster cannot tell them apart."""
    clusters: dict[str, list[str]] = {}
    for group in groups:
        clusters.setdefault(group.broker, []).append(group.cluster)
    for name, (first, *others) in clusters.items():
        if others:
            what = f"group {name} is in {len(others) + 1} clusters: RocketMQ's clients see that of {first} only"
            yield Finding(Code.GROUP_NAME_TWICE, what, f"rename it in {', '.join(others)}")


def check_topics(
    routes: Mapping[str, route_data_pb2.TopicRouteData], named_after: Collection[str], intents: Iterable[Intent]
) -> Iterator[Finding]:
    """Topics of applications that nobody can write; those apart that operators decided to drain.

    Args:
        routes: Routes of topics.
        named_after: Clusters and brokers, which have topics of their own name.
        intents: Intents that are in force.
    """
    drained = drains(intents)
    unwritable: list[str] = []
    planned: list[str] = []
    for topic, route in sorted(routes.items()):
        if lacks_writable_queue(route) and is_application(topic, named_after):
            (unwritable if lacks_writable_queue(route, drained) else planned).append(topic)
    if unwritable:
        explain = f"nsctl explain {quote(unwritable[0])}"
        what = f"{_lacking(unwritable)} no writable queue with a master: {first_few(unwritable)}"
        yield Finding(Code.TOPICS_NOT_WRITABLE, what, f"`{explain}` says why", explain)
    if planned:
        ends = first_few([f"{one.broker_name} {until(one, 'with no end')}" for one in drained.values()], 3)
        what = f"{_lacking(planned)} no writable queue during a drain ({ends}): {first_few(planned)}"
        yield Finding(Code.TOPICS_DRAINED, what)


def _lacking(topics: Sequence[str]) -> str:
    return f"{counted(len(topics), 'topic')} {'has' if len(topics) == 1 else 'have'}"


# What the journal tells: brokers that left against their will, and brokers that take an id from each other.

INVOLUNTARY = frozenset(
    {
        route_data_pb2.REMOVAL_REASON_CHANNEL_CLOSED,
        route_data_pb2.REMOVAL_REASON_EXPIRED,
        route_data_pb2.REMOVAL_REASON_BROKER_DOWN,
        route_data_pb2.REMOVAL_REASON_LOSS_CONFIRMED,
    }
)
"""Reasons of removals that neither the broker nor an operator asked for at that moment."""
SHOWN_LOSSES = 10
"""Losses of brokers with a finding each, the newest first."""
MOST_ENTRIES = 5_000
"""Entries of the journal that are looked at: more than an hour of a busy fleet has."""
LOSS_SECONDS = 3_600.0
"""Age of the oldest loss that is a finding."""
BACK_SECONDS = 600.0
"""Age of the oldest loss that is a finding once the broker is back."""
CONTEST_SECONDS = 300.0
"""Two brokers with one id replace each other once in RocketMQ's period of 30 s; so long without it, and it is over."""
_BROKER = re.compile(r"(?:\A|; )(\S+) \(([^();]+), id ([0-9]{1,19})\) of (\S+) ([^;:]*)")
"""A broker in the summary of an entry, and what happened to it."""


class Lost(NamedTuple):
    """A broker that left the routes."""

    key: BrokerKey
    at_millis: int
    reason: str

    def __str__(self) -> str:
        """In words."""
        cluster, broker, number, addr = self.key
        return f"{broker} ({addr}, id {number}) of {cluster} left at {iso(self.at_millis)}: {self.reason}"


def losses(entries: Iterable[admin_service_pb2.AuditEntry], reasons: Collection[int]) -> list[Lost]:
    """Reads the brokers that left for some reasons, as far as summaries name them; the newest first."""
    return [
        Lost(BrokerKey(cluster, broker, int(number), addr), entry.applied_at_millis, row(entry)["removal_reason"])
        for entry in entries
        if entry.removed_broker_count and entry.removal_reason in reasons
        for broker, addr, number, cluster, what in _BROKER.findall(entry.summary)
        if not what.startswith(("registered", "is kept"))
    ]


def check_losses(
    lost: Iterable[Lost], lives: Collection[route_data_pb2.BrokerLiveInfo], now: float
) -> Iterator[Finding]:
    """Brokers that left against their will, each once, with the reason, and whether it is back.

    A broker that the guard keeps has not left, and is part of that finding. A broker may come back at another address.
    """
    there = {(live.cluster_name, live.broker_name, live.broker_id): live for live in lives}
    newest: dict[BrokerKey, Lost] = {}
    for one in lost:
        if now - one.at_millis / 1000 < LOSS_SECONDS:
            newest.setdefault(one.key, one)
    gone = [one for key, one in newest.items() if key[:3] not in there]
    for one in gone[:SHOWN_LOSSES]:
        do = "start the broker; its agent is there" if one.reason == "BROKER_DOWN" else ""
        yield Finding(Code.BROKER_LOST, str(one), do, subject=one.key)
    if left_out := Counter(one.reason for one in gone[SHOWN_LOSSES:]):
        reasons = ", ".join(f"{number} {reason}" for reason, number in left_out.items())
        what = f"{left_out.total():,} more brokers left within the hour ({reasons})"
        yield Finding(Code.BROKER_LOST, what, "look for what they have in common")
    back = [(one, there[key[:3]]) for key, one in newest.items() if key[:3] in there]
    recent = [(one, live) for one, live in back if not live.unconfirmed and now - one.at_millis / 1000 <= BACK_SECONDS]
    for one, live in recent[:SHOWN_LOSSES]:
        log = "its own log: it registers itself" if live.topic_by_topic else "the log of its agent"
        yield Finding(Code.BROKER_CAME_BACK, str(one), f"it is back; for the reason see {log}", subject=one.key)


def check_contests(lost: Iterable[Lost], now: float) -> Iterator[Finding]:
    """Brokers that take one id from each other: one that was replaced registered again, and was replaced again.

    A broker that is moved to another address is replaced once.
    """
    replaced = Counter(one.key for one in lost if now - one.at_millis / 1000 < CONTEST_SECONDS)
    for contested in dict.fromkeys(key[:3] for key, times in replaced.items() if times > 1):
        cluster, broker, number = contested
        addrs = ", ".join(sorted(key.addr for key in replaced if key[:3] == contested))
        what = f"id {number} of {broker} of {cluster} is claimed in turn by {addrs}"
        do = "stop all but one, or give each its own name (RocketMQ: brokerName) or id (brokerId)"
        yield Finding(Code.BROKER_ID_CONTESTED, what, do)


# What a name server shows at its port: when its certificate ends.

ENDS_SOON_DAYS = 14
"""A certificate that ends within this time is told."""


def check_certificate(endpoint: Endpoint, files: ClientFiles, timeout_seconds: float) -> Iterator[Finding]:
    """When the certificate of a server ends. Nothing if it cannot be reached, or the certificate is not trusted."""
    try:
        context = ssl.create_default_context(cafile=files.authorities)
        context.set_alpn_protocols(["h2"])
        if files.certificate is not None:
            context.load_cert_chain(files.certificate, files.key)
        with (
            socket.create_connection(endpoint, timeout_seconds) as plain,
            context.wrap_socket(plain, server_hostname=files.server_name or endpoint.host) as connection,
        ):
            shown = connection.getpeercert()
    except OSError:
        return
    assert shown is not None, "it was checked"
    days = (ssl.cert_time_to_seconds(str(shown["notAfter"])) - time.time()) / 86_400
    if days < ENDS_SOON_DAYS:
        yield Finding(Code.CERTIFICATE_ENDS_SOON, f"its certificate ends in {days:,.1f} days")


# All findings of a fleet.


def examined(held: Held) -> Iterator[Finding]:
    """What is wrong with what one name server holds."""
    now = held.tables.clock.theirs
    yield from check_status(held.status)
    if held.diagnostics is not None:
        yield from check_diagnostics(held.diagnostics)
    yield from check_clock(held.tables.clock)
    if held.status.warm and not held.tables.lives:
        yield Finding(Code.NO_BROKERS, "no broker is registered")
    yield from check_liveness(held.tables.lives.values(), now)
    yield from check_names(held.tables.groups)
    yield from check_topics(held.tables.routes, held.tables.named, held.intents or ())
    entries = held.entries or ()
    yield from check_losses(losses(entries, INVOLUNTARY), held.tables.lives.values(), now)
    yield from check_contests(losses(entries, {route_data_pb2.REMOVAL_REASON_REPLACED}), now)
    yield from check_intents(held.intents or (), now * 1000)
    if held.refusal:
        yield Finding(Code.NOT_ALLOWED, f"hides its journal or what operators changed: {held.refusal}")


_WORDS = {"broker": "brokers or topics", "intent": "intents", "kv": "KV configuration", "setting": "settings"}


def together(helds: Sequence[Held], differing: Iterable[str]) -> Iterator[Finding]:
    """What is wrong with the name servers together; ``differing`` has the kinds in which they differ."""
    versions = sorted({one.status.version for one in helds})
    if len(versions) > 1:
        yield Finding(Code.VERSIONS_DIFFER, f"name servers of versions {', '.join(versions)}")
    names = [one.status.header.namesrv_name for one in helds]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding(Code.SAME_NAME_TWICE, f"two name servers call themselves {name}")
    if words := [_WORDS[kind] for kind in differing]:
        yield Finding(Code.NAME_SERVERS_DISAGREE, f"name servers differ in {', '.join(words)}", subject="")


def doctor(session: Session) -> None:
    """Looks for what is wrong with the fleet and says what to do; exit code 1 for a problem, 5 for a warning."""
    answers, errors = session.servers.each(
        lambda server: read(server, most_entries=MOST_ENTRIES, journal_seconds=LOSS_SECONDS)
    )
    helds, seconds = list(answers.values()), session.timeout_seconds
    found = [(str(at), check_silence(error, seconds)) for at, error in errors.items()]
    found += [(str(at), one) for at, held in answers.items() for one in examined(held)]
    if session.security is not None:
        for at in (server.endpoint for server in session.servers):
            found += [(str(at), one) for one in check_certificate(at, session.security.files, seconds)]
    findings = merged([*found, *(("", one) for one in together(helds, disagreements(helds)))])
    rows = [finding.row() for finding in findings]
    if session.form == "table":
        everywhere = [str(server.endpoint) for server in session.servers]
        for shown in rows:
            if len(everywhere) > 1 and shown["name_servers"] in ([], everywhere):
                shown["name_servers"] = "all"
    if rows or session.form != "table":
        session.show(rows, ("severity", "code", "name_servers", "what", "do"))
    if not rows:
        brokers = {key for held in helds for key in held.tables.lives}
        session.note(f"{counted(len(brokers), 'broker')} at {counted(len(helds), 'name server')}: no findings")
    worst = findings[0].code.severity if findings else Severity.INFO
    session.found({Severity.PROBLEM: FOUND, Severity.WARNING: WARNED, Severity.INFO: 0}[worst])
