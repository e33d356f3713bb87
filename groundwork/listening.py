"""A check of an address before somebody listens on it, with errors in words of our own."""

from __future__ import annotations

import socket

from groundwork.endpoints import Endpoint


def check_bindable(listen: Endpoint) -> None:
    """Binds once without gRPC, whose engines write lines of their own and do not say what is wrong.

    Raises:
        OSError: The port is in use, or the address is not this machine's; the text says which.
    """
    try:
        socket.create_server(listen, family=_family(listen)).close()
    except OSError as error:
        raise _cannot_listen(listen, error) from error


def bind(listen: Endpoint) -> socket.socket:
    """Takes a port without listening on it, for a program that will: Linux lets it bind the same one meanwhile.

    Raises:
        OSError: The port is in use, or the address is not this machine's; the text says which.
    """
    taken = socket.socket(_family(listen))
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(listen)
    except OSError as error:
        taken.close()
        raise _cannot_listen(listen, error) from error
    return taken


def _family(listen: Endpoint) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in listen.host else socket.AF_INET


def _cannot_listen(listen: Endpoint, error: OSError) -> OSError:
    reason = str(error.strerror).partition(" (while")[0]
    return OSError(f"cannot listen on {listen}: {reason}")
