"""Whether an address can be listened on, said in words of our own."""

from __future__ import annotations

import socket

from groundwork.endpoints import Endpoint


def check_bindable(listen: Endpoint) -> None:
    """Binds once without gRPC, whose engines write lines of their own and do not say what is wrong.

    Raises:
        OSError: The port is in use, or the address is not this machine's; the text says which.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        socket.create_server(listen, family=family).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise OSError(f"cannot listen on {listen}: {reason}") from error
