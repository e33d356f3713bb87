#!/usr/bin/env python3
"""Writes the values of limits into docs/limits.md, each into the row of its name.

Fails if a limit has no row, or a row no limit. ``--check`` writes nothing, and fails if a value differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import ModuleType

from broker_agent import broker_outer_api, listener, namesrv_list, registration
from broker_agent.clients import limits as client_limits
from broker_agent.topics import files, manager, slave_synchronize, table, topic_service
from groundwork import endpoints, permits, topic_names
from namesrv import limits, runtime_settings
from namesrv.app import administration
from namesrv.core import changes, pins
from namesrv.remoting import limits as remoting_limits
from namesrv.settings import NamesrvSettings

PAGE = Path(__file__).parents[1] / "limits.md"
SERVER = (limits, topic_names, endpoints, permits, changes, pins, runtime_settings, administration)
AGENT = (manager, table, files, topic_service, registration, broker_outer_api, namesrv_list, slave_synchronize)
SETTINGS = ("slow_reader_timeout_millis", "caller_share_percent")
"""Settings that are limits on what a caller may do."""
NO_LIMITS = {"MAX_SHOWN_NAME", "REFUSAL_LOG_SECONDS", "RETRY_SECONDS", "SHOWN_CHARACTERS"}
"""Numbers of these modules that bound nothing that a caller sends or holds."""
ROW = re.compile(r"(?m)^(\| `(\w+)`[^|]*\| (?:below )?)([\d,.]+)(?= \|)")


def numbers(module: ModuleType, name: str = r"[A-Z]\w*") -> dict[str, float]:
    """The public numbers that a module defines, by names of a pattern."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assigned = re.findall(r"(?m)^([A-Z]\w*(?:, [A-Z]\w*)*)(?:: \w+)? = ", text)
    defined = {one for names in assigned for one in names.split(", ")} - NO_LIMITS
    return {
        one: value
        for one, value in vars(module).items()
        if one in defined and re.fullmatch(name, one) and isinstance(value, int | float)
    }


def in_force() -> dict[str, dict[str, float]]:
    """The limits by the heading of their section; the empty heading has those of all other sections."""
    server: dict[str, float] = {name: NamesrvSettings.model_fields[name].default for name in SETTINGS}
    for module in SERVER:
        server |= numbers(module)
    agent: dict[str, float] = {}
    for module in AGENT:
        agent |= numbers(module, "MAX_.*")
    return {
        "": server,
        "## RocketMQ's protocol": numbers(remoting_limits),
        "### Clients": numbers(client_limits),
        "### Topics, name servers and operators": agent,
        "### The fast listener": numbers(listener, "MAX_.*|KEEPALIVE_SECONDS|CONNECTION_AGE_GRACE_SECONDS"),
    }


def rendered(page: str) -> str:
    """The page with the values in force. Raises SystemExit."""
    known, rows, sections = in_force(), set[tuple[str, str]](), re.split(r"(?m)^(?=##+ )", page)
    for number, section in enumerate(sections):
        heading = section.partition("\n")[0]
        heading = heading if heading in known else ""

        def row(found: re.Match[str], heading: str = heading) -> str:
            rows.add((heading, found[2]))
            value = known[heading].get(found[2])
            return found[0] if value is None else found[1] + f"{value:,}".removesuffix(".0")

        sections[number] = ROW.sub(row, section)
    if wrong := rows ^ {(heading, name) for heading, values in known.items() for name in values}:
        raise SystemExit(f"{PAGE.name}: no row, or no limit: {sorted(wrong)}")
    return "".join(sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail if the page differs, instead of writing it")
    before = PAGE.read_text(encoding="utf-8")
    after = rendered(before)
    if not parser.parse_args().check:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit(f"{PAGE.name} is out of date: run docs/tools/generate_limits.py")


if __name__ == "__main__":
    main()
