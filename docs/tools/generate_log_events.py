#!/usr/bin/env python3
"""Writes docs/log_events.md: the text of log_events.intro.md, and the events that the sources log.

An event is a string in snake case that is the first argument of a logging call. Parts that are computed become ``*``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.tools.generated_page import table, write_or_check
from namesrv_common.process.logs import RateLimitedLog

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "Name servers": "namesrv",
    "Agents": "broker_agent",
    "All programs": "namesrv_common",
    "The console": "nsctl/console",
}
"""The folder of the sources by the heading of their events."""
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
EVENT = re.compile(r"[a-z*]+(?:_[a-z*\d]+)*")


class Event(NamedTuple):
    """What one call logs."""

    name: str
    level: str
    fields: tuple[str, ...]


def texts(node: ast.expr) -> list[str]:
    """The strings that an expression may be: a literal, a formatted one, or any of a tuple."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)]
        case ast.Tuple(elts=elements):
            return [text for element in elements for text in texts(element)]
        case _:
            return []


def events(tree: ast.AST) -> Iterator[Event]:
    """The events of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.GeneratorExp(elt=ast.Call(func=ast.Name(id=RateLimitedLog.__name__)), generators=[generator]):
                yield from (Event(name, "warning", ()) for name in texts(generator.iter))
            case ast.Call(func=ast.Name(id=RateLimitedLog.__name__), args=[first, *_], keywords=keywords):
                levels = (ast.unparse(one.value).rpartition(".")[2].lower() for one in keywords if one.arg == "level")
                level = next(levels, "warning")
                yield from (Event(name, level, ()) for name in texts(first))
            case ast.Call(func=ast.Attribute(attr=level), args=[first, *_], keywords=keywords) if level in LEVELS:
                fields = tuple(one.arg for one in keywords if one.arg and one.arg != "exc_info")
                yield from (Event(name, LEVELS[level], fields) for name in texts(first))
            case ast.Call(func=ast.Name(id="report"), args=[_, _, ast.Constant(value=name), ast.Constant(value=level)]):
                yield Event(str(name), str(level), ("text",))
            case ast.Call(func=ast.Name(id="logged") | ast.Attribute(attr="_tell"), args=[ast.Constant(value=name), _]):
                yield Event(str(name), "info", ())
            case ast.keyword(arg="defect_event", value=ast.Constant(value=name)):
                yield Event(str(name), "error", ("call", "error_id"))
            case _:
                pass


def rendered() -> str:
    text = []
    for heading, folder in PROGRAMS.items():
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name, level, fields in events(ast.parse(file.read_text(encoding="utf-8"))):
                if EVENT.fullmatch(name):
                    found[name, level].update(fields)
        rows = [
            (f"`{name}`", level, ", ".join(f"`{one}`" for one in sorted(of)))
            for (name, level), of in sorted(found.items())
        ]
        text.append(f"## {heading}\n\n{table(('event', 'level', 'fields'), rows)}")
    return "\n".join(text)


if __name__ == "__main__":
    write_or_check("log_events", rendered())
