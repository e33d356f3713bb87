"""Why a server does not answer a call of gRPC, which mostly tells neither what failed nor when a certificate ends."""

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

    @property
    def what(self) -> str:
        """What is wrong, as said of the server."""
        return self.value[0]

    def said(self, error: CallError, timeout_seconds: float) -> str:
        """What is wrong, with the time that was waited for or the error of the call."""
        if self is Silence.HANGS:
            return f"did not answer within {timeout_seconds:g} s"
        return f"{self.what}: {error.error}" if self in {Silence.GONE, Silence.ERROR} else self.what

    @property
    def do(self) -> str:
        """What to look at."""
        return self.value[1]


_OF_CODE = {
    7: Silence.OTHER_AUTHORITY,  # one of the same name, with another key
    9: Silence.NOT_YET_VALID,
    10: Silence.ENDED,
    18: Silence.OTHER_AUTHORITY,
    19: Silence.OTHER_AUTHORITY,
    20: Silence.OTHER_AUTHORITY,
    21: Silence.OTHER_AUTHORITY,
    62: Silence.OTHER_NAME,
    64: Silence.OTHER_NAME,
}
"""OpenSSL's X509_V_ERR_… of what can be wrong with a server's certificate."""
_WANTED = re.compile("CERTIFICATE_REQUIRED|certificate required|HANDSHAKE_FAILURE|handshake failure", re.IGNORECASE)
_ALERT = re.compile("alert", re.IGNORECASE)


def served_until(endpoint: Endpoint, files: ClientFiles, timeout_seconds: float) -> float:
    """Seconds since the Unix epoch at which a server's certificate ends.

    Raises:
        OSError: It cannot be reached, or its certificate is not trusted.
    """
    with (
        socket.create_connection(endpoint, timeout_seconds) as plain,
        _context(files).wrap_socket(plain, server_hostname=files.server_name or endpoint.host) as connection,
    ):
        shown = connection.getpeercert()
    assert shown is not None, "it was checked"
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def why_silent(error: CallError, files: ClientFiles | None, timeout_seconds: float) -> Silence:
    """Says why a call failed that has no answer for the caller.

    Only if there was no connection, the server is called in other ways: a probe leaves a line in the server's log.

    Args:
        error: The failure of the call.
        files: Certificates and authorities of the failed call. None means plain text.
        timeout_seconds: Time for one handshake.
    """
    if error.error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Silence.HANGS
    if error.error.code is not grpc.StatusCode.UNAVAILABLE or error.error.reason:
        return Silence.ERROR
    try:
        with socket.create_connection(error.endpoint, timeout_seconds) as plain:
            found = _in_plain(plain, error.endpoint) if files is None else _of_handshake(plain, error.endpoint, files)
    except OSError:
        return Silence.GONE
    if found in {None, Silence.SERVER_IS_PLAIN} and _speaks_rocketmq(error.endpoint, timeout_seconds):
        return Silence.ROCKETMQ_PORT
    return found or Silence.GONE


def _in_plain(plain: socket.socket, endpoint: Endpoint) -> Silence | None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent; it is only asked what it is
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(plain, server_hostname=endpoint.host) as connection:
            return Silence.SERVER_WANTS_TLS if connection.selected_alpn_protocol() else None
    except ssl.SSLError as error:
        return Silence.SERVER_WANTS_TLS if _ALERT.search(str(error)) else None  # an alert is an answer in TLS
    except OSError:
        return None


def _speaks_rocketmq(endpoint: Endpoint, timeout_seconds: float) -> bool:
    try:
        with RocketmqNamesrv(endpoint, timeout_seconds) as server:
            server.groups()
    except CallError as error:
        return "answered code" in error.error.message
    return True


def _of_handshake(plain: socket.socket, endpoint: Endpoint, files: ClientFiles) -> Silence | None:
    shows = files.certificate is not None
    try:
        with _context(files).wrap_socket(plain, server_hostname=files.server_name or endpoint.host) as connection:
            # In TLS 1.3 a server refuses a client's certificate only after the client's handshake is done. One that
            # takes it begins to speak HTTP/2 at once.
            if connection.recv(1):
                return None
    except ssl.SSLCertVerificationError as error:
        return _OF_CODE.get(error.verify_code, Silence.OTHER_TLS)
    except ssl.SSLError as error:
        if _ALERT.search(str(error)) is None:
            return Silence.SERVER_IS_PLAIN if "WRONG_VERSION_NUMBER" in str(error) else Silence.OTHER_TLS
        if _WANTED.search(str(error)) and not shows:
            return Silence.WANTS_CERTIFICATE
        return Silence.OURS_REFUSED if shows else Silence.OTHER_TLS
    except ConnectionError:
        pass  # it ended the connection without a word, as if there were nothing to read
    return Silence.OURS_REFUSED if shows else Silence.WANTS_CERTIFICATE


def _context(files: ClientFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.authorities)
    context.set_alpn_protocols(["h2"])
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context
