"""A TLS handshake beside gRPC, which tells neither when a certificate ends nor, mostly, why a handshake failed."""

from __future__ import annotations

import re
import socket
import ssl
from enum import Enum

from groundwork.channels import ClientFiles
from groundwork.endpoints import Endpoint


class TlsProblem(Enum):
    """Why client and server do not come together, and what to look at."""

    SERVER_WANTS_TLS = "it speaks TLS, and was called in plain text", "give --tls-ca, or the context's tls_ca"
    SERVER_IS_PLAIN = "it speaks no TLS, and was called with it", "leave out --tls-ca, or give it --tls-cert"
    ENDED = "its certificate has ended", "put a new one in place of its files: it reads them again by itself"
    NOT_YET_VALID = "its certificate is not valid yet", "compare the clocks of both machines"
    OTHER_AUTHORITY = "its certificate is of an authority that --tls-ca does not have", "see who signed which"
    OTHER_NAME = "its certificate is for other names", "call it by one of them, or give --tls-server-name"
    WANTS_CERTIFICATE = "it asks for a certificate, and none was shown", "give --tls-cert and --tls-key"
    OURS_REFUSED = "it refuses the certificate that was shown", "see whether --tls-cert has ended, and who signed it"
    OTHER = "the TLS handshake failed", "see its log"

    @property
    def what(self) -> str:
        """What is wrong, as said of the server."""
        return self.value[0]

    @property
    def do(self) -> str:
        """What to look at."""
        return self.value[1]


_OF_CODE = {
    7: TlsProblem.OTHER_AUTHORITY,  # one of the same name, with another key
    9: TlsProblem.NOT_YET_VALID,
    10: TlsProblem.ENDED,
    18: TlsProblem.OTHER_AUTHORITY,
    19: TlsProblem.OTHER_AUTHORITY,
    20: TlsProblem.OTHER_AUTHORITY,
    21: TlsProblem.OTHER_AUTHORITY,
    62: TlsProblem.OTHER_NAME,
    64: TlsProblem.OTHER_NAME,
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


def tls_problem(endpoint: Endpoint, files: ClientFiles | None, timeout_seconds: float) -> TlsProblem | None:
    """Why a server that did not answer a call could not be talked to, if that is because of TLS; else None.

    Args:
        files: What it was called with; None: in plain text.
        timeout_seconds: Time for one handshake.
    """
    try:
        with socket.create_connection(endpoint, timeout_seconds) as plain:
            if files is None:
                return TlsProblem.SERVER_WANTS_TLS if _speaks_tls(plain, endpoint) else None
            return _of_handshake(plain, endpoint, files)
    except OSError:
        return None  # it cannot be reached at all, or hangs


def _speaks_tls(plain: socket.socket, endpoint: Endpoint) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent; it is only asked what it is
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_socket(plain, server_hostname=endpoint.host).close()
    except ssl.SSLError as error:
        return _ALERT.search(str(error)) is not None  # it answered in TLS
    except OSError:
        return False
    return True


def _of_handshake(plain: socket.socket, endpoint: Endpoint, files: ClientFiles) -> TlsProblem | None:
    shows = files.certificate is not None
    try:
        with _context(files).wrap_socket(plain, server_hostname=files.server_name or endpoint.host) as connection:
            # In TLS 1.3 a server refuses a client's certificate only after the client's handshake is done. One that
            # takes it begins to speak HTTP/2 at once.
            if connection.recv(1):
                return None
    except ssl.SSLCertVerificationError as error:
        return _OF_CODE.get(error.verify_code, TlsProblem.OTHER)
    except ssl.SSLError as error:
        if _ALERT.search(str(error)) is None:
            return TlsProblem.SERVER_IS_PLAIN if "WRONG_VERSION_NUMBER" in str(error) else TlsProblem.OTHER
        if _WANTED.search(str(error)) and not shows:
            return TlsProblem.WANTS_CERTIFICATE
        return TlsProblem.OURS_REFUSED if shows else TlsProblem.OTHER
    except ConnectionError:
        pass  # it ended the connection without a word, as if there were nothing to read
    return TlsProblem.OURS_REFUSED if shows else TlsProblem.WANTS_CERTIFICATE


def _context(files: ClientFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.authorities)
    context.set_alpn_protocols(["h2"])
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context
