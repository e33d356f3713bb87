"""Output of a command: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import yaml
from rich import box
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text

from groundwork.printable import UNPRINTABLE, printable_json, printable_yaml
from groundwork.terminal import TableConsole

WIDTH_WITHOUT_TERMINAL = 160
"""Columns of a table that goes to a file or a pipe."""

Row = Mapping[str, Any]


class Format(StrEnum):
    """How rows are shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class _Dumper(yaml.SafeDumper):
    """Puts texts that are not printable in double quotes, where YAML has escapes for what is in them."""


def _represented(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if UNPRINTABLE.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represented)


def console() -> TableConsole:
    """Where tables go: as wide as the terminal, or a fixed width where there is none."""
    out = TableConsole()
    return out if out.is_terminal else TableConsole(width=WIDTH_WITHOUT_TERMINAL)


def show(rows: Sequence[Row], columns: Sequence[str], form: Format, title: str = "") -> None:
    """Shows rows.

    Args:
        rows: Values by name. Programs get all of them, with their types.
        columns: Names of the values that people see, in this order.
        form: How.
        title: A line above a table.
    """
    if form is Format.JSON:
        text = Text(printable_json(json.dumps(list(rows), indent=2, ensure_ascii=False)))
        JSONHighlighter().highlight(text)
        console().print(text, soft_wrap=True)
    elif form is Format.YAML:
        dumped = yaml.dump([dict(row) for row in rows], Dumper=_Dumper, sort_keys=False, allow_unicode=True)
        sys.stdout.write(printable_yaml(dumped))
    else:
        console().print(table(rows, columns, title))


def table(rows: Iterable[Row], columns: Sequence[str], title: str = "") -> Table:
    """Rows as a table for people. The console shows values as text, whatever a broker calls itself."""
    drawn = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        drawn.add_column(column.replace("_", " ").upper(), overflow="fold")
    for row in rows:
        drawn.add_row(*(_cell(row.get(column)) for column in columns))
    return drawn


def iso(millis: int | None) -> str:
    """A time in UTC, ISO 8601; empty if there is none."""
    if not millis:
        return ""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
