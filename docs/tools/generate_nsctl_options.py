#!/usr/bin/env python3
"""Writes docs/nsctl_options.md: the text of nsctl_options.intro.md, and each command's synopsis and options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import typer

from docs.tools.generated_page import table, write_or_check
from nsctl.cli import app

SHARED = 15
"""Commands that have the same option from which on it is shown once for all."""
HEAD = ("option", "meaning")


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group with their full names."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
    for word, each in (below or {}).items():
        yield from commands(each, f"{name} {word}")


def rendered() -> str:
    found = {}
    for name, command in commands(typer.main.get_command(app), "nsctl"):
        context = command.make_context(name, [], resilient_parsing=True)
        records = [record for one in command.params if (record := one.get_help_record(context))]
        synopsis = f"{name} {' '.join(command.collect_usage_pieces(context))}"
        found[synopsis] = (
            name,
            command.help,
            [(f"`{one.replace('|', ' or ')}`", " ".join(text.split())) for one, text in records],
        )
    counted = Counter(one for _, _, rows in found.values() for one in rows)
    shared = [one for one, count in counted.items() if count >= SHARED]
    text = f"## Shared options\n\n{table(HEAD, shared)}"
    for synopsis, (name, help_text, rows) in found.items():
        text += f"\n## {name}\n\n{' '.join(help_text.split())}\n\n```text\n{synopsis}\n```\n"
        if own := [one for one in rows if one not in shared]:
            text += f"\n{table(HEAD, own)}"
    return text


if __name__ == "__main__":
    write_or_check("nsctl_options", rendered())
