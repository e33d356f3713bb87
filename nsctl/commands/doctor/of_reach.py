"""Whether a name server can be talked to: that it answers, that client and server agree on TLS, when that will end."""

from __future__ import annotations

import time
from collections.abc import Iterator

from groundwork.channels import ClientFiles
from groundwork.endpoints import Endpoint
from groundwork.grpc_errors import CallError
from groundwork.namesrv_client import NamesrvClient
from nsctl.commands.doctor.findings import Code, Finding
from nsctl.fleet.handshake import TlsProblem, served_until, tls_problem

ENDS_SOON_DAYS = 14
"""A certificate that ends within this time is told."""


def of_silence(endpoint: Endpoint, error: CallError, files: ClientFiles | None, timeout_seconds: float) -> Finding:
    """Why a name server did not answer, and what to do about that."""
    where = str(endpoint)
    problem = tls_problem(endpoint, files, timeout_seconds) if error.unreachable else None
    if problem is None:
        return Finding(Code.UNREACHABLE, where, str(error.error), "start it, or take it off the list")
    code = Code.CERTIFICATE_ENDED if problem is TlsProblem.ENDED else Code.TLS_REFUSED
    return Finding(code, where, problem.what, problem.do)


def of_certificate(server: NamesrvClient, files: ClientFiles) -> Iterator[Finding]:
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
