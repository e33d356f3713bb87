"""The end of the certificate that a server shows, found by a handshake beside gRPC, which does not tell."""

from __future__ import annotations

import socket
import ssl

from groundwork.connections.channels import ClientFiles
from groundwork.endpoints import Endpoint


def served_until(endpoint: Endpoint, files: ClientFiles, timeout_seconds: float) -> float:
    """Seconds since the Unix epoch at which a server's certificate ends.

    Raises:
        OSError: It cannot be reached, or its certificate is not trusted.
    """
    context = ssl.create_default_context(cafile=files.authorities)
    context.set_alpn_protocols(["h2"])
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
    name = files.server_name or endpoint.host
    with (
        socket.create_connection(endpoint, timeout_seconds) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        shown = connection.getpeercert()
    assert shown is not None, "it was checked"
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))
