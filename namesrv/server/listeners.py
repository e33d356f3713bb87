"""The engine of the settings, and the sockets that it listens on: bound here, or handed over by systemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, MutableMapping

from namesrv.engines.api import HOW_TO_GET_IT, EngineServer, native_problem
from namesrv.settings import NamesrvSettings
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.systemd import check_bindable
from namesrv_common.tls.listener_tls import ListenerTls

FIRST_DESCRIPTOR = 3
"""The number of the first descriptor that is handed over; the others follow it."""


class CannotListen(Exception):
    """The address cannot be listened on, or not with these certificates and permits."""


def build_server(settings: NamesrvSettings, tls: ListenerTls | None = None) -> EngineServer:
    """Makes a server on the engine of the settings, without services and ports. Raises CannotListen."""
    if settings.engine == "development":
        return EngineServer()
    if (problem := native_problem()) is not None:
        raise CannotListen(
            f"setting engine: native cannot be used: {problem}; {HOW_TO_GET_IT}, "
            "or try it on this machine with --engine development"
        )
    from namesrv.engines.native import NativeServer  # noqa: PLC0415 - its package may be missing

    return NativeServer(settings, tls)


def listen_at(
    setting: str,
    endpoint: Endpoint,
    listen: Callable[[str, list[socket.socket]], int],
    handed_over: list[socket.socket],
) -> Endpoint:
    """Has a server listen at an endpoint, on systemd's sockets if it hands any over; returns it with its port.

    Raises:
        CannotListen: The port is in use, or the address is not this machine's, or the engine takes no sockets.
    """
    try:
        if not handed_over:
            check_bindable(endpoint)
        return endpoint._replace(port=listen(str(endpoint), handed_over))
    except (RuntimeError, OSError, ValueError) as error:
        what = "socket activation" if handed_over else f"setting {setting}"
        raise CannotListen(f"{what}: {error}") from error


def listeners_handed_over(
    settings: NamesrvSettings, environment: MutableMapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR
) -> dict[str, list[socket.socket]]:
    """Returns the listening sockets that systemd, or another starter, has handed to this process (sd_listen_fds(3)).

    Each socket belongs to the setting that has its address: ``listen`` or ``remoting_listen``. The variables are
    removed, so that processes started from here do not take the sockets for their own.

    Raises:
        CannotListen: A descriptor is not a listening socket, or no setting has its address. The text names it.
    """
    listens = {"listen": settings.endpoint}
    if settings.remoting_endpoint is not None:
        listens["remoting_listen"] = settings.remoting_endpoint
    taken: dict[str, list[socket.socket]] = {name: [] for name in listens}
    process, count_text, names_text = (
        environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    )
    if process != str(os.getpid()) or not count_text:
        return taken
    if not (count_text.isascii() and count_text.isdigit()):
        problem = f"LISTEN_FDS is {count_text!r:.40}, not the number of sockets that are handed over"
        raise CannotListen(f"socket activation: {problem}")
    names = names_text.split(":") if names_text else []
    sockets: list[socket.socket] = []
    try:
        for index in range(int(count_text)):
            name = names[index] if index < len(names) else "unknown"
            sockets.append(_listener(first + index, name))
            taken[_setting_of(sockets[-1], name, listens)].append(sockets[-1])
    except ValueError as error:
        for one in sockets:
            one.close()
        raise CannotListen(f"socket activation: {error}") from error
    return taken


def _listener(number: int, name: str) -> socket.socket:
    """The socket of a descriptor, which programs started from here do not inherit."""
    try:
        os.set_inheritable(number, False)
        one = socket.socket(fileno=number)
    except OSError as error:
        raise ValueError(f"descriptor {number} ({name}) of LISTEN_FDS is no socket: {error.strerror}") from error
    if one.type != socket.SOCK_STREAM or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        one.close()
        raise ValueError(f"descriptor {number} ({name}) of LISTEN_FDS does not listen: it needs ListenStream=")
    return one


def _setting_of(one: socket.socket, name: str, listens: Mapping[str, Endpoint]) -> str:
    """Returns the setting that has the address of a socket. Raises ValueError."""
    settings = " and ".join(f"{setting} is {listen}" for setting, listen in listens.items())
    if one.family not in {socket.AF_INET, socket.AF_INET6}:
        raise ValueError(f"{name} is not of TCP, but {settings}: write such an address after ListenStream=")
    host, port = one.getsockname()[:2]
    for setting, listen in listens.items():
        if (host, port if listen.port else 0) in _addresses(setting, listen):
            return setting
    raise ValueError(f"{name} listens at {Endpoint(host, port)}, but {settings}")


def _addresses(setting: str, listen: Endpoint) -> set[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host of {setting}, {listen.host}, has no address: {error.strerror}") from error
    return {(str(address[0]), int(address[1])) for *_, address in found}
