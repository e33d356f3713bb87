"""The engines that a name server may run on."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

DEFAULT = "grpcio"
"""What tests run on unless they are about engines: it is installed everywhere."""
ENGINES = (DEFAULT, "native")


def each() -> list[str | ParameterSet]:
    """Parameters of a fixture: what runs on another engine than the default one is marked ``engines``."""
    return [name if name == DEFAULT else pytest.param(name, marks=pytest.mark.engines) for name in ENGINES]


def present(engine: str) -> str:
    """The engine itself; skips the test if it is not installed."""
    if engine == "native":
        pytest.importorskip("namesrv_engine", reason="namesrv-engine is not installed (make setup needs cargo for it)")
    return engine
