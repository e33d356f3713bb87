"""Makes the server on the engine of the settings. Nothing else in the program knows which engine runs."""

from __future__ import annotations

from importlib import import_module

from namesrv.engines.api import HOW_TO_GET_IT, EngineServer
from namesrv.engines.development import DevelopmentServer
from namesrv.settings import NamesrvSettings
from namesrv_common.tls.listener_tls import CertificateCheck, ListenerTls
from namesrv_common.version import __version__

NATIVE_PACKAGE = "namesrv-engine"
"""The distribution of the native engine; its module is ``namesrv_engine``."""


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
