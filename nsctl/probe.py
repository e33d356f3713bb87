"""Why a server does not answer a call of gRPC, and what to do about it; and when a server's certificate ends."""

from __future__ import annotations

import re
import socket
import ssl
from enum import Enum

import grpc

from namesrv_common.client.channels import ClientFiles
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from nsctl.rocketmq import RocketmqNamesrv

_AGAIN = "put a new one in place of its files: it reads them again by itself"
_ERROR = "the server runs: look for the error in its log before you restart it"


class Silence(Enum):
    """Why client and server do not come together, and what to look at."""

    SERVER_WANTS_TLS = "it speaks TLS, and was called in plain text", "give --tls-ca, or the context's tls_ca"
    SERVER_IS_PLAIN = "it speaks no TLS, and was called with it", "leave out --tls-ca, or give it --tls-cert"
    ENDED = "its certificate has ended", _AGAIN
    NOT_YET_VALID = "its certificate is not valid yet", "compare the clocks of both machines"
    OTHER_AUTHORITY = "its certificate is of an authority that --tls-ca does not have", "see who signed which"
    OTHER_NAME = "its certificate is for other names", "call it by one of them, or give --tls-server-name"
    WANTS_CERTIFICATE = "it asks for a certificate, and none was shown", "give --tls-cert and --tls-key"
    OURS_REFUSED = "it refuses the certificate that was shown", "see whether --tls-cert has ended, and who signed it"
    OTHER_TLS = "the TLS handshake failed", "see its log"
    ROCKETMQ_PORT = "it speaks RocketMQ's protocol: this is the port of brokers and clients", "name its gRPC port"
    HANGS = "did not answer in time", "see whether its process hangs, or the network drops packets"
    ERROR = "it answers with an error", _ERROR
    GONE = "cannot be reached", "start it, or take it off the list"

    def said(self, error: CallError, timeout_seconds: float) -> str:
        """What is wrong, with the time that was waited for or the error of the call."""
        if self is Silence.HANGS:
            return f"did not answer within {timeout_seconds:g} s"
        what, _ = self.value
        return f"{what}: {error.error}" if self in {Silence.GONE, Silence.ERROR} else what

    @property
    def do(self) -> str:
        """What to look at."""
        return self.value[1]


_OVER_TLS = {
    "WRONG_VERSION_NUMBER": Silence.SERVER_IS_PLAIN,
    "certificate has expired": Silence.ENDED,
    "certificate is not yet valid": Silence.NOT_YET_VALID,
    "CERTIFICATE_VERIFY_FAILED": Silence.OTHER_AUTHORITY,
    "BAD_SIGNATURE": Silence.OTHER_AUTHORITY,  # one of the same name, with another key
    "Hostname Verification Check failed": Silence.OTHER_NAME,
}
"""What is wrong with a server's certificate, by words in gRPC's text. The more telling ones come first."""
_CERTIFICATE_REFUSED = re.compile("TSI_DATA_CORRUPTED|CERTIFICATE_REQUIRED|ALERT_HANDSHAKE_FAILURE")
"""Of a server that refuses the client's certificate after the handshake, as in TLS 1.3, or during it."""


def served_until(endpoint: Endpoint, files: ClientFiles, timeout_seconds: float) -> float:
    """Seconds since the Unix epoch at which a server's certificate ends.

    Raises:
        OSError: It cannot be reached, or its certificate is not trusted.
    """
    context = ssl.create_default_context(cafile=files.authorities)
    context.set_alpn_protocols(["h2"])
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
    with (
        socket.create_connection(endpoint, timeout_seconds) as plain,
        context.wrap_socket(plain, server_hostname=files.server_name or endpoint.host) as connection,
    ):
        shown = connection.getpeercert()
    assert shown is not None, "it was checked"
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def why_silent(error: CallError, files: ClientFiles | None, timeout_seconds: float) -> Silence:
    """Says why a call failed that has no answer for the caller.

    Only if gRPC's text does not tell, the server is called in other ways: a probe leaves a line in the server's log.

    Args:
        error: The failure of the call.
        files: Certificates and authorities of the failed call. None means plain text.
        timeout_seconds: Time for one handshake.
    """
    if error.error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Silence.HANGS
    if error.error.code is not grpc.StatusCode.UNAVAILABLE or error.error.reason:
        return Silence.ERROR
    if files is None:
        found = Silence.SERVER_WANTS_TLS if _speaks_tls(error.endpoint, timeout_seconds) else None
    else:
        found = _of_text(error.error.message, shows_certificate=files.certificate is not None)
    if found in {None, Silence.SERVER_IS_PLAIN} and _speaks_rocketmq(error.endpoint, timeout_seconds):
        return Silence.ROCKETMQ_PORT
    return found or Silence.GONE


def _of_text(text: str, *, shows_certificate: bool) -> Silence | None:
    """Reads gRPC's text of a call over TLS."""
    if _CERTIFICATE_REFUSED.search(text):
        return Silence.OURS_REFUSED if shows_certificate else Silence.WANTS_CERTIFICATE
    other = Silence.OTHER_TLS if re.search("handshake", text, re.IGNORECASE) else None
    return next((why for words, why in _OVER_TLS.items() if words in text), other)


def _speaks_tls(endpoint: Endpoint, timeout_seconds: float) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent; it is only asked what it is
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(endpoint, timeout_seconds) as plain,
            context.wrap_socket(plain, server_hostname=endpoint.host) as connection,
        ):
            return connection.selected_alpn_protocol() is not None
    except ssl.SSLError as error:
        return "alert" in str(error).lower()  # an alert is an answer in TLS
    except OSError:
        return False


def _speaks_rocketmq(endpoint: Endpoint, timeout_seconds: float) -> bool:
    try:
        with RocketmqNamesrv(endpoint, timeout_seconds) as server:
            server.groups()
    except CallError as error:
        return "answered code" in error.error.message
    return True
