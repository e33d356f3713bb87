"""Why a server does not answer a call of gRPC, and what to do about it; and when a server's certificate ends."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

import grpc

from namesrv_common.client.channels import ClientFiles
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, hint_on
from nsctl.findings import Code, Finding
from nsctl.rocketmq import RocketmqClient

ENDS_SOON_DAYS = 14
"""A certificate that ends within this time is told."""
_BY_HINT = {
    "the server's certificate has ended": Code.CERTIFICATE_ENDED,
    "something else than gRPC listens there": Code.WRONG_PORT,
}
"""Findings by gRPC's hints; all others are about TLS."""


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
        what = f"its certificate ends in {days:,.1f} days"
        yield Finding(Code.CERTIFICATE_ENDS_SOON, what, "renew it; the name server reads it again by itself")


def check_silence(error: CallError, timeout_seconds: float) -> Finding:
    """Why a server did not answer within so many seconds, and what to do about that."""
    told = error.error
    if told.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        do = "see whether its process hangs, or the network drops packets"
        return Finding(Code.UNREACHABLE, f"did not answer within {timeout_seconds:g} s", do)
    if told.code is not grpc.StatusCode.UNAVAILABLE or told.reason:
        do = "the server runs: look for the error in its log before you restart it"
        return Finding(Code.SERVER_ERROR, f"it answers with an error: {told}", do)
    what, _, do = hint_on(told.message).partition(": ")
    if "certificate" not in what and _speaks_rocketmq(error.endpoint, timeout_seconds):
        what = "it speaks RocketMQ's protocol: this is the port of brokers and clients"
        return Finding(Code.WRONG_PORT, what, "name its gRPC port")
    if not what:
        return Finding(Code.UNREACHABLE, f"cannot be reached: {told}", "start it, or take it off the list")
    return Finding(_BY_HINT.get(what, Code.TLS_REFUSED), what, do)


def _speaks_rocketmq(endpoint: Endpoint, timeout_seconds: float) -> bool:
    try:
        with RocketmqClient(endpoint, timeout_seconds) as server:
            server.groups()
    except CallError as error:
        return "answered code" in error.error.message
    return True
