"""Which engine carries the calls, and why that one."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

import structlog

from groundwork.endpoints import Endpoint
from groundwork.version import __version__

_log = structlog.get_logger(__name__)

NATIVE_PACKAGE = "namesrv-engine"
"""The distribution of the native engine; its module is ``namesrv_engine``."""


class ChosenEngine(NamedTuple):
    """An engine by its name, with the reason for it in words."""

    name: str
    why: str


class EngineMissing(Exception):
    """The engine that was asked for cannot be used here. The text says what to do."""


def choose_engine(wanted: str, listen: Endpoint) -> ChosenEngine:
    """Chooses the engine: ``auto`` takes native if it can be used, else grpcio, but only on loopback.

    Raises:
        EngineMissing: Native is wanted, or ``auto`` beyond loopback, and native cannot be used.
    """
    if wanted not in {"auto", "native"}:
        return ChosenEngine(wanted, "as set")
    problem = _native_problem()
    if problem is None:
        return ChosenEngine(
            "native", "as set" if wanted == "native" else f"{NATIVE_PACKAGE} {__version__} is installed"
        )
    if wanted == "auto" and listen.is_loopback:
        return ChosenEngine("grpcio", problem)
    why = "" if wanted == "native" else f", which auto requires beyond loopback (listen {listen})"
    raise EngineMissing(
        f"setting engine: native cannot be used{why}: {problem}; pip install "
        f"./namesrv_engine-{__version__}-*.whl (in a clone: make engine), "
        "or use --engine grpcio, which is for trusted networks"
    )


def warn_of_exposure(engine: ChosenEngine, listen: Endpoint) -> None:
    """Says so if the engine is not made for where it listens."""
    if engine.name == "grpcio" and not listen.is_loopback:
        _log.warning(
            "engine_for_trusted_networks",
            engine=engine.name,
            listen=str(listen),
            problem="resets and compressed headers of a hostile client exhaust it; use the native engine",
        )


def _native_problem() -> str | None:
    """Why native cannot be used here; None if it can."""
    try:
        version = import_module("namesrv_engine").__version__
    except ModuleNotFoundError as error:
        return f"{NATIVE_PACKAGE} is not installed ({error})"
    except Exception as error:  # noqa: BLE001 - a broken binary raises anything
        return f"{NATIVE_PACKAGE} cannot be loaded ({error})"
    if version != __version__:
        return f"{NATIVE_PACKAGE} is of version {version}, and namesrv of {__version__}"
    return None
