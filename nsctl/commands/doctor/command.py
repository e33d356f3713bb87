"""The command ``nsctl doctor``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import grpc
from namesrv_api.v1 import route_service_pb2 as pb

from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import NamesrvClient
from nsctl.clocks import clock_of
from nsctl.commands.doctor.findings import Code, Finding, Severity
from nsctl.commands.doctor.of_brokers import of_lives, of_losses, of_names, of_topics
from nsctl.commands.doctor.of_reach import of_certificate, of_silence
from nsctl.commands.doctor.of_server import of_clock, of_decisions, of_status
from nsctl.commands.read import live_brokers
from nsctl.exit_codes import FOUND, WARNED
from nsctl.output import Format
from nsctl.session import Session


class Checked(NamedTuple):
    """What one name server told."""

    status: pb.GetNamesrvStatusResponse
    findings: list[Finding]


def doctor(session: Session) -> None:
    """Looks for what is wrong with the fleet and says what to do; exit code 1 for a problem, 5 for a warning."""
    files = None if session.security is None else session.security.files
    findings: list[Finding] = []
    statuses: list[pb.GetNamesrvStatusResponse] = []
    for answer in session.servers.each(_check):
        if answer.value is None:
            assert answer.error is not None
            findings.append(of_silence(answer.endpoint, answer.error, files, session.timeout_seconds))
        else:
            findings += answer.value.findings
            statuses.append(answer.value.status)
    if files is not None:
        for server in session.servers.all:
            findings += of_certificate(server, files)
    findings += together(statuses)
    rows = [finding.row() for finding in sorted(findings, key=lambda finding: finding.order)]
    if rows or session.form is not Format.TABLE:
        session.show(rows, ("severity", "code", "about", "what", "do"))
    if not rows:
        session.note(f"nothing found at {len(statuses)} name servers")
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
    found = [*of_status(where, status), *of_clock(where, clock)]
    lives = list(live_brokers(server))
    found += of_lives(where, lives, clock.theirs)
    found += of_names(server, lives)
    found += of_topics(server)
    try:
        found += of_losses(server, clock.theirs * 1000)
        found += of_decisions(server, clock.theirs * 1000)
    except CallError as error:
        if error.error.code is not grpc.StatusCode.PERMISSION_DENIED:
            raise
        what = "does not let you read its journal and the decisions in force"
        found.append(Finding(Code.NOT_ALLOWED, where, what, "show a certificate or token that may administer"))
    return Checked(status, found)


def together(statuses: list[pb.GetNamesrvStatusResponse]) -> Iterator[Finding]:
    """What is wrong with the name servers together."""
    versions = sorted({status.version for status in statuses})
    if len(versions) > 1:
        what = f"name servers of versions {', '.join(versions)}"
        yield Finding(Code.VERSIONS_DIFFER, "all", what, "finish the upgrade")
    names = [status.header.namesrv_name for status in statuses]
    for name in sorted({name for name in names if names.count(name) > 1}):
        what = f"two name servers call themselves {name}"
        yield Finding(Code.SAME_NAME_TWICE, "all", what, "give each a --name of its own")
    counts = {(status.live_broker_count, status.topic_count) for status in statuses}
    if len(counts) > 1:
        what = "name servers do not hold the same brokers and topics"
        yield Finding(Code.NAME_SERVERS_DISAGREE, "all", what, "`nsctl diff` says which")
