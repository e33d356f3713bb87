"""docs/limits.md has every limit of the agent, with the value that is in force."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

from broker_agent import broker_outer_api, namesrv_list, registration
from broker_agent import listener as fast_limits
from broker_agent.clients import limits
from broker_agent.topics import files, manager, slave_synchronize, table, topic_service

PAGE = Path(__file__).resolve().parents[3] / "docs" / "limits.md"
MODULES = (
    manager,
    table,
    files,
    topic_service,
    registration,
    broker_outer_api,
    namesrv_list,
    slave_synchronize,
)
_ROW = re.compile(r"^\| `(?P<name>\w+)`[^|]*\| (?P<value>[^|]*) \|", re.MULTILINE)


def own_limits(module: ModuleType) -> frozenset[str]:
    """Limits that a module defines and does not import."""
    assigned = re.findall(r"^([A-Z][\w, ]*) = ", inspect.getsource(module), re.MULTILINE)
    return frozenset(name for names in assigned for name in names.split(", ") if name.startswith("MAX_"))


LISTENER_LIMITS = own_limits(fast_limits) | {
    "KEEPALIVE_SECONDS",
    "MAX_CONNECTION_AGE_SECONDS",
    "CONNECTION_AGE_GRACE_SECONDS",
}


def rows(heading: str) -> dict[str, str]:
    """Name to value, in the section of the page with that heading."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}\n")
    return {row["name"]: row["value"] for row in _ROW.finditer(re.split(r"^##+ ", section, flags=re.MULTILINE)[0])}


def shown(values: dict[str, float]) -> dict[str, str]:
    """As the page writes them."""
    return {name: f"{value:,}".removesuffix(".0") for name, value in values.items()}


def test_the_page_has_every_limit_on_clients_and_no_other() -> None:
    in_force = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(in_force) > 20
    assert rows("Clients") == shown(in_force)


def test_the_page_has_every_limit_of_the_fast_listener_and_no_other() -> None:
    in_force = {name: value for name, value in vars(fast_limits).items() if name in LISTENER_LIMITS}
    assert rows("The fast listener") == shown(in_force)


def test_the_page_has_the_other_limits_of_the_agent() -> None:
    in_force = {name: value for module in MODULES for name, value in vars(module).items() if name in own_limits(module)}
    assert rows("Topics, name servers and operators") == shown(in_force)
