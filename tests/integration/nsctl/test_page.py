"""The console examples of docs/nsctl.md: the commands are there, and show and answer what the page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from docs.tools.generate_nsctl import examples
from nsctl.cli import app
from tests.support.pages import code_blocks

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

_, *EXAMPLES = code_blocks("docs/nsctl.md", "console")


def shape(block: str) -> list[str]:
    """The lines of an example without what differs each time: times, ports, widths, epochs, a busy machine."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", block)
    text = re.sub(r"ipv4:127\.0\.0\.1:\d+", "CALLER", text)
    text = re.sub(r"(FULL|INCREMENT) +\d+\.\d", r"\1 MILLIS", text)
    text = re.sub(r"─+", "─", text)
    text = re.sub(r'"epoch": "[0-9a-f-]+"', '"epoch": "EPOCH"', text)
    lines = [re.sub(" {2,}", "  ", line.strip()) for line in text.splitlines()]
    # Two name servers and two topics are reported in the order in which they come.
    return [lines[0], *sorted(line for line in lines[1:] if not re.search("EVENT_LOOP_HELD_UP|event loop stood", line))]


def arguments(example: str) -> str:
    """The command of an example, without the program's name."""
    return example.splitlines()[0].removeprefix("$ nsctl ")


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    """What each command says to a fleet of now, by the command."""
    blocks = re.findall(r"^```console\n(.*?)^```$", examples(), re.MULTILINE | re.DOTALL)
    return {arguments(block): block for block in blocks}


@pytest.mark.parametrize("example", EXAMPLES, ids=arguments)
def test_a_command_says_what_the_page_shows(example: str, now: dict[str, str]) -> None:
    assert shape(now[arguments(example)]) == shape(example), "run: python -m docs.tools.generate_nsctl"


def test_every_command_has_an_example() -> None:
    def commands(command: Any, name: tuple[str, ...] = ()) -> Iterator[str]:
        below = getattr(command, "commands", {})
        yield from () if below else (" ".join(name),)
        for word, each in below.items():
            yield from commands(each, (*name, word))

    shown = [arguments(example) for example in EXAMPLES]
    missing = {name for name in commands(typer.main.get_command(app)) if not any(s.startswith(name) for s in shown)}
    assert missing == {"console"}  # docs/console.md is about it
