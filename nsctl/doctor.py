"""The command that looks for what is wrong with a fleet, and says what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.connections.channels import ClientFiles
from groundwork.namesrv_client.blocking import NamesrvClient
from groundwork.topic_rules import SYNC_MEMBER_TOPIC_PREFIX
from nsctl.certificate_end import served_until
from nsctl.diagnose import BATCH
from nsctl.exit_codes import FOUND
from nsctl.output import Format, Row
from nsctl.read import TopicKind, broker_groups, live_brokers, topic_names
from nsctl.session import Session

SKEW_SECONDS = 1.0
"""A clock this far from ours is told, beyond the time that the call took."""
LAG_MILLIS = 100.0
"""An event loop that was held up for so long is told."""
LATE_SHARE = 0.5
"""A broker that has used up this share of its timeout is told: its agent has missed registrations."""
SHOWN_TOPICS = 5
"""Topics named in one line."""

ENDS_SOON_DAYS = 14
"""A certificate that ends within this time is told."""

WRITE, READ = 2, 4


class Finding(NamedTuple):
    """Something that is wrong, or will be."""

    severity: str
    """``problem`` or ``warning``."""
    about: str
    what: str
    do: str
    """What to do about it."""


class Checked(NamedTuple):
    """What one name server told."""

    status: pb.GetNamesrvStatusResponse
    findings: list[Finding]


def doctor(session: Session) -> None:
    """Looks for what is wrong with the fleet and says what to do; exit code 1 if there is a problem."""
    findings: list[Finding] = []
    statuses: list[pb.GetNamesrvStatusResponse] = []
    for answer in session.servers.each(_check):
        if answer.value is None:
            assert answer.error is not None
            findings.append(
                Finding("problem", str(answer.endpoint), str(answer.error.error), "start it, or take it off the list")
            )
        else:
            findings += answer.value.findings
            statuses.append(answer.value.status)
    if session.security is not None:
        files = session.security.files
        for server in session.servers.all:
            findings += _of_certificate(server, files)
    findings += _together(statuses)
    rows: list[Row] = [finding._asdict() for finding in sorted(findings)]
    session.show(rows, ("severity", "about", "what", "do")) if rows or session.form is not Format.TABLE else None
    if not rows:
        session.note(f"nothing found at {len(statuses)} name servers")
    if any(finding.severity == "problem" for finding in findings):
        session.found(FOUND)


def _check(server: NamesrvClient) -> Checked:
    began = time.time()
    status = server.call("GetNamesrvStatus", pb.GetNamesrvStatusRequest())
    assert isinstance(status, pb.GetNamesrvStatusResponse)
    found = [*_of_status(str(server.endpoint), status), *_of_clock(server, began)]
    lives = list(live_brokers(server))
    found += _of_brokers(str(server.endpoint), lives)
    found += _of_names(server, lives)
    found += _of_topics(server)
    return Checked(status, found)


def _of_status(where: str, status: pb.GetNamesrvStatusResponse) -> Iterator[Finding]:
    if not status.warm:
        yield Finding(
            "warning", where, "is warming: unknown topics are UNAVAILABLE there", "wait until its brokers are back"
        )
    if status.guard_tripped:
        held = f"the mass-loss guard holds {status.unconfirmed_broker_count:,} brokers that vanished together"
        yield Finding("problem", where, held, "look at the network; `nsctl guard confirm-loss` if they are gone")
    elif status.unconfirmed_broker_count:
        known = f"{status.unconfirmed_broker_count:,} brokers are known from its snapshot file only"
        yield Finding("warning", where, known, "wait for them, or see why their agents do not register")
    if status.HasField("replica") and not status.replica.leader_connected:
        lost = f"is a copy of {status.replica.leader}, which it has lost: {status.replica.problem}"
        yield Finding("problem", where, lost, "see whether that name server runs and can be reached from there")
    if status.loop_lag_millis > LAG_MILLIS:
        lag = f"its event loop was held up for {status.loop_lag_millis:,.0f} ms during the last minute"
        yield Finding("warning", where, lag, "give it more CPU, or see who calls it so much")


def _of_clock(server: NamesrvClient, began: float) -> Iterator[Finding]:
    """The name server's clock against ours, by the header of a snapshot that is taken now."""
    request = pb.StreamRouteSnapshotRequest(tables=[pb.ROUTE_TABLE_CLUSTERS])  # the smallest
    header = next(server.stream("StreamRouteSnapshot", request, server.timeout_seconds))
    assert isinstance(header, pb.StreamRouteSnapshotResponse)
    theirs = header.snapshot_header.taken_at_millis / 1000
    skew = max(began - theirs, theirs - time.time())
    if skew > SKEW_SECONDS:
        what = f"its clock is {skew:,.1f} s {'behind' if theirs < began else 'ahead of'} ours"
        yield Finding("warning", str(server.endpoint), what, "set the clocks; only times shown to people suffer")


def _of_certificate(server: NamesrvClient, files: ClientFiles) -> Iterator[Finding]:
    """When the certificate ends that a name server shows. One that cannot be reached has been told of already."""
    try:
        ends = served_until(server.endpoint, files, server.timeout_seconds)
    except OSError:
        return
    days = (ends - time.time()) / 86_400
    if days < ENDS_SOON_DAYS:
        what = f"its certificate ends in {days:,.1f} days"
        yield Finding("warning", str(server.endpoint), what, "renew it; the name server reads it again by itself")


def _of_brokers(where: str, lives: list[route_data_pb2.BrokerLiveInfo]) -> Iterator[Finding]:
    now = time.time() * 1000
    groups: dict[tuple[str, str], list[route_data_pb2.BrokerLiveInfo]] = {}
    for live in lives:
        groups.setdefault((live.cluster_name, live.broker_name), []).append(live)
        silent = now - live.last_update_timestamp_millis
        if silent > live.heartbeat_timeout_millis * LATE_SHARE and not live.unconfirmed:
            what = f"{live.broker_name} ({live.broker_addr}) was heard of {silent / 1000:,.0f} s ago"
            yield Finding("warning", where, what, "see the log of its agent")
        if not live.has_channel and not live.unconfirmed:
            what = f"{live.broker_name} ({live.broker_addr}) has no channel: its death shows only after its timeout"
            yield Finding("warning", where, what, "run the broker agent beside it")
    for (cluster, name), members in groups.items():
        if all(live.broker_id != 0 for live in members):
            what = f"group {name} of {cluster} has no master: {len(members)} slaves"
            yield Finding("problem", where, what, "start the master, or promote a slave")


def _of_names(server: NamesrvClient, lives: list[route_data_pb2.BrokerLiveInfo]) -> Iterator[Finding]:
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
            yield Finding("warning", str(server.endpoint), what, f"rename it in {', '.join(others)}")


def _of_topics(server: NamesrvClient) -> Iterator[Finding]:
    every = topic_names(server, None, TopicKind.ALL)
    names = [name for name in every if not name.startswith(SYNC_MEMBER_TOPIC_PREFIX)]
    unwritable: list[str] = []
    for start in range(0, len(names), BATCH):
        answer = server.call("BatchGetTopicRoutes", pb.BatchGetTopicRoutesRequest(topics=names[start : start + BATCH]))
        assert isinstance(answer, pb.BatchGetTopicRoutesResponse)
        unwritable += [named.topic for named in answer.routes if not _is_writable(named.route)]
    if unwritable:
        some = ", ".join(unwritable[:SHOWN_TOPICS]) + (", ..." if len(unwritable) > SHOWN_TOPICS else "")
        what = f"{len(unwritable):,} topics have no writable queue with a master: {some}"
        yield Finding("problem", str(server.endpoint), what, f"`nsctl explain {unwritable[0]}` says why")


def _is_writable(route: route_data_pb2.TopicRouteData) -> bool:
    masters = {
        (group.cluster_name, group.broker_name)
        for group in route.broker_datas
        if any(broker.broker_id == 0 for broker in group.broker_addrs)
    }
    return any(
        queues.write_queue_nums > 0 and queues.perm & WRITE and (queues.cluster_name, queues.broker_name) in masters
        for queues in route.queue_datas
    )


def _together(statuses: list[pb.GetNamesrvStatusResponse]) -> Iterator[Finding]:
    versions = sorted({status.version for status in statuses})
    if len(versions) > 1:
        yield Finding("warning", "all", f"name servers of versions {', '.join(versions)}", "finish the upgrade")
    names = [status.header.namesrv_name for status in statuses]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Finding("warning", "all", f"two name servers call themselves {name}", "give each a --name of its own")
    counts = {(status.live_broker_count, status.topic_count) for status in statuses}
    if len(counts) > 1:
        yield Finding(
            "problem", "all", "name servers do not hold the same brokers and topics", "`nsctl diff` says which"
        )
