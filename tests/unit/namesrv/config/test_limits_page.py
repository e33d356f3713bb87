"""docs/limits.md has every limit, with the value that is in force."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from groundwork import endpoints, permits, topic_names
from namesrv import limits, runtime_settings
from namesrv.core import changes, pins
from namesrv.grpc_api import admin
from namesrv.remoting import limits as remoting_limits
from namesrv.settings import NamesrvSettings

PAGE = Path(__file__).resolve().parents[4] / "docs" / "limits.md"
MODULES = (
    limits,
    topic_names,
    endpoints,
    permits,
    changes,
    pins,
    runtime_settings,
    admin,
    remoting_limits,
)
SETTINGS = (
    "slow_reader_timeout_millis",
    "caller_share_percent",
)
"""Settings that are limits on what a caller may do."""

_ROW = re.compile(r"^\| `(?P<name>\w+)`[^|]*\| (?P<value>[^|]*) \|", re.MULTILINE)
_OF_THE_AGENT = re.compile(r"\n## The broker agent\n.*?(?=\n## |\Z)", re.DOTALL)
"""A section that has a test of its own."""


NO_LIMITS = {"MAX_SHOWN_NAME", "REFUSAL_LOG_SECONDS", "RETRY_SECONDS", "SHOWN_CHARACTERS"}
"""Numbers of these modules that bound nothing that a caller sends or holds."""


def constants(module: ModuleType) -> dict[str, float]:
    """The public numbers of a module."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and name not in NO_LIMITS and isinstance(value, int | float)
    }


@pytest.fixture(scope="module")
def rows() -> Mapping[str, str]:
    """Name to value, as the page has them."""
    page = _OF_THE_AGENT.sub("", PAGE.read_text(encoding="utf-8"))
    return {row["name"]: row["value"] for row in _ROW.finditer(page)}


@pytest.fixture(scope="module")
def in_force() -> Mapping[str, float]:
    """Name to value, as the code has them."""
    settings = {name: NamesrvSettings.model_fields[name].default for name in SETTINGS}
    return settings | {name: value for module in MODULES for name, value in constants(module).items()}


def test_the_page_has_every_limit_and_no_other(rows: Mapping[str, str], in_force: Mapping[str, float]) -> None:
    assert rows.keys() == in_force.keys()


def test_the_values_on_the_page_are_those_in_force(rows: Mapping[str, str], in_force: Mapping[str, float]) -> None:
    shown = {name: value.removeprefix("below ") for name, value in rows.items()}
    assert shown == {name: f"{value:,}".removesuffix(".0") for name, value in in_force.items()}
