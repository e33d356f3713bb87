#!/usr/bin/env python3
"""Writes docs/limits.md: the text of limits.intro.md, and each limit with its value and the docstring in the code.

A limit without a docstring or comment fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from broker_agent import listener, namesrv_list, registration
from broker_agent.clients import limits as client_limits
from broker_agent.topics import table as topic_table
from broker_agent.topics import topic_service, topics_json
from docs.tools.generated_page import table, write_or_check
from namesrv import limits, settings
from namesrv.app import administration
from namesrv.core import changes, snapshot
from namesrv.remoting import bodies, calls, json_reader, route_json, wire
from namesrv.settings import NamesrvSettings
from namesrv_common import endpoints, topic_names
from namesrv_common.client import channels, namesrv_client
from namesrv_common.server import metrics_http, permits
from route_client import cache

SETTINGS = (
    "caller_share_percent",
    "slow_reader_timeout_millis",
    "keepalive_time_millis",
    "journal_max_bytes",
    "cache_bytes",
)
"""Settings that are limits on what a caller may do or hold."""
NO_LIMITS = {
    *("CHECK_SLICE", "CHUNK_BYTES", "LONGEST_RETRY_SECONDS", "MAX_SHOWN_NAME", "POLL_SECONDS", "REFUSAL_LOG_SECONDS"),
    *("RETRY_SECONDS", "SHOWN_CHARACTERS"),
}
"""Numbers of these modules that bound nothing that a caller sends or holds."""
SECTIONS: dict[str, tuple[str, tuple[ModuleType, ...]]] = {
    "## Name servers": (r"[A-Z]\w*", (limits, changes, snapshot, administration, settings)),
    "## Names and files": (r"[A-Z]\w*", (topic_names, endpoints, permits)),
    "## RocketMQ's protocol": (r"MAX_\w*", (wire, json_reader, bodies, route_json, calls)),
    "## Metrics and health": (r"MAX_\w*|REQUEST_SECONDS", (metrics_http,)),
    "## The broker agent's clients": (r"[A-Z]\w*", (client_limits,)),
    "## The broker agent's operators": (
        r"MAX_\w*|KEEPALIVE_SECONDS|SLOW_READER_SECONDS|CONNECTION_AGE_GRACE_SECONDS",
        (listener, topic_table, topics_json, topic_service, registration, namesrv_list),
    ),
    "## Answers of servers": (r"MAX_\w*", (channels, namesrv_client, cache)),
}
"""The modules of each section, and the names in them that are limits."""
UNITS = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024}


def documented(module: ModuleType, name: str) -> Iterator[tuple[str, str]]:
    """The public numbers that a module defines, by names of a pattern, each with its docstring. Raises SystemExit."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    lines, body = text.splitlines(), ast.parse(text).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for one in (found.id for target in targets for found in ast.walk(target) if isinstance(found, ast.Name)):
            if one in NO_LIMITS or not re.fullmatch(name, one) or not isinstance(vars(module)[one], int | float):
                continue
            text = lines[node.lineno - 1].partition("  # ")[2]
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            if not text:
                raise SystemExit(f"{module.__name__}.{one} has no docstring")
            yield one, text


def shown(name: str, value: float) -> str:
    """A value, with a unit if its name says bytes."""
    if "_BYTES" in name:
        for unit, size in UNITS.items():
            if value >= size and value % size == 0:
                return f"{int(value / size):,} {unit}"
    return f"{value:,}".removesuffix(".0")


def rendered() -> str:
    """The page after its introduction."""
    fields = NamesrvSettings.model_fields
    rows = [(f"`{one}`", f"{fields[one].default:,}", str(fields[one].description)) for one in SETTINGS]
    text = f"## Settings\n\n{table(('setting', 'default', 'meaning'), rows)}"
    for heading, (name, modules) in SECTIONS.items():
        limits = [(module, *one) for module in modules for one in documented(module, name)]
        rows = [(f"`{one}`", shown(one, vars(module)[one]), text) for module, one, text in limits]
        text += f"\n{heading}\n\n{table(('limit', 'value', 'meaning'), rows)}"
    return text


if __name__ == "__main__":
    write_or_check("limits", rendered())
