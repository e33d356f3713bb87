"""Writes a generated page, or with ``--check`` fails if the page differs from what would be written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1]


def write_or_check(name: str, text: str) -> None:
    """The whole program of a generator: ``text`` follows the introduction ``NAME.intro.md`` in ``NAME.md``."""
    parser = argparse.ArgumentParser(description=f"Writes docs/{name}.md.")
    parser.add_argument("--check", action="store_true", help="fail if the page differs, instead of writing it")
    source = f"<!-- Written by docs/tools/generate_{name}.py from {name}.intro.md and the code: edit those. -->\n\n"
    whole = f"{source}{(DOCS / f'{name}.intro.md').read_text(encoding='utf-8')}\n{text}"
    page = DOCS / f"{name}.md"
    if not parser.parse_args().check:
        page.write_text(whole, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != whole:
        sys.exit(f"{page.name} is out of date: run docs/tools/generate_{name}.py")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its cells escaped."""
    lines = [head, *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    first, *others = (f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)
    return f"{first}|{'---|' * len(head)}\n{''.join(others)}"
