"""The engines that a name server may run on."""

from __future__ import annotations

import pytest

ENGINES = ("grpcio", "native", "envoy")


def present(engine: str) -> str:
    """The engine itself; skips the test if it is not installed."""
    if engine == "envoy":
        pytest.importorskip("pyvoy", reason="pyvoy is missing")
    return engine
