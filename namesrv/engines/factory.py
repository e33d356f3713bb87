"""Makes the server on the engine of the settings. Nothing else in the program knows which engine runs.

The development engine is gRPC's own server for Python, to try the name server without the native engine.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from importlib import import_module

import grpc
import structlog

from namesrv.engines.api import HOW_TO_GET_IT, EngineServer, FrameHandler, Handler
from namesrv.limits import MAX_REGISTRATION_BYTES
from namesrv.settings import NamesrvSettings
from namesrv_common.tls.listener_tls import CertificateCheck, ListenerTls
from namesrv_common.version import __version__

NATIVE_PACKAGE = "namesrv-engine"
"""The distribution of the native engine; its module is ``namesrv_engine``."""


_log = structlog.get_logger(__name__)


class EngineMissing(Exception):
    """The native engine cannot be used here. The text says what to do."""


def build_server(settings: NamesrvSettings, tls: ListenerTls | None = None) -> EngineServer:
    """Makes a server without services and ports. Raises EngineMissing."""
    if settings.engine == "development":
        return DevelopmentServer()
    if (problem := native_problem()) is not None:
        raise EngineMissing(
            f"setting engine: native cannot be used: {problem}; {HOW_TO_GET_IT}, "
            "or try it on this machine with --engine development"
        )
    from namesrv.engines.native import NativeServer  # noqa: PLC0415 - its package may be missing

    return NativeServer(settings, tls)


def certificate_check(settings: NamesrvSettings) -> CertificateCheck | None:
    """Refuses certificates that the engine of the settings cannot use. None if it can use all that OpenSSL can."""
    if settings.engine == "development" or native_problem() is not None:
        return None
    check: CertificateCheck = import_module("namesrv_engine").check_tls
    return check


def native_problem() -> str | None:
    """Returns why the native engine cannot be used here; None if it can."""
    try:
        version = import_module("namesrv_engine").__version__
    except ModuleNotFoundError as error:
        return f"{NATIVE_PACKAGE} is not installed ({error})"
    except Exception as error:  # noqa: BLE001 - a broken binary raises anything
        return f"{NATIVE_PACKAGE} cannot be loaded ({error})"
    if version != __version__:
        return f"{NATIVE_PACKAGE} is of version {version}, and namesrv of {__version__}"
    return None


class DevelopmentServer(EngineServer):
    """Passes calls on. It keeps no answer and has no figures."""

    def __init__(self) -> None:
        # Without so_reuseport=0, gRPC shares the port with another server of this user, which gets half of the calls.
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REGISTRATION_BYTES)]
        self._server = grpc.aio.server(options=options)

    def add_handlers(self, service_name: str, handlers: Mapping[str, Handler]) -> None:
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service_name, dict(handlers)),))

    def listen(self, address: str, sockets: list[socket.socket], frames: FrameHandler | None = None) -> int:
        assert frames is None, "the settings refuse it"
        if sockets:
            raise ValueError(
                "engine is development, which cannot take the listener that systemd hands over: "
                "use the native engine, or disable namesrv.socket"
            )
        return self._server.add_insecure_port(address)

    async def start(self) -> None:
        _log.warning("development_engine", problem="it keeps no limits: it is for trying things out on this machine")
        await self._server.start()

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)
