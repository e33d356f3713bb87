"""The engines that tests run on."""

from __future__ import annotations

from importlib import import_module

NATIVE = "native"
"""What name servers run on in tests, as in use."""
DEVELOPMENT = "development"
"""What every call is tested on, too."""
LEFT_OUT = "the native engine is not installed; `make engine` says what it needs"
"""Why tests are skipped where there is no native engine."""


def require_native() -> None:
    """Skips the test where the native engine is not installed."""
    try:
        import_module("namesrv_engine")
    except ModuleNotFoundError:
        import pytest  # noqa: PLC0415 - the demos, which start processes as tests do, run without it

        pytest.skip(LEFT_OUT)
