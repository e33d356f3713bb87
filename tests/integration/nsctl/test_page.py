"""The console examples of docs/nsctl.md: the commands are there, and show and answer what the page shows."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from docs.tools.generate_nsctl import examples
from nsctl.cli import app
from tests.support.pages import ROOT, code_blocks
from tests.support.programs.processes import BIN, NamesrvProcess, eventually
from tests.support.registrations import registration

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

INTRODUCTION, *EXAMPLES = code_blocks("docs/nsctl.md", "console")
TIMEOUT = 60


def shape(block: str) -> list[str]:
    """The lines of an example without what differs each time: times, ports, widths, epochs, a busy machine."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", block)
    text = re.sub(r"ipv4:127\.0\.0\.1:\d+", "CALLER", text)
    text = re.sub(r"(FULL|INCREMENT) +\d+\.\d", r"\1 MILLIS", text)
    text = re.sub(r"─+", "─", text)
    text = re.sub(r'"epoch": "[0-9a-f-]+"', '"epoch": "EPOCH"', text)
    lines = [re.sub(" {2,}", "  ", line.strip()) for line in text.splitlines()]
    # Two name servers and two topics are told of in the order in which they come.
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


def test_the_page_begins_with_its_introduction_and_no_example_is_missing(now: dict[str, str]) -> None:
    introduction = (ROOT / "docs/nsctl.intro.md").read_text(encoding="utf-8").rstrip()
    assert (ROOT / "docs/nsctl.md").read_text(encoding="utf-8").startswith(f"{introduction}\n\n```console\n")
    assert [arguments(example) for example in EXAMPLES] == list(now)


def test_every_command_has_an_example() -> None:
    def commands(command: Any, name: tuple[str, ...] = ()) -> Iterator[str]:
        below = getattr(command, "commands", {})
        yield from () if below else (" ".join(name),)
        for word, each in below.items():
            yield from commands(each, (*name, word))

    shown = [arguments(example) for example in EXAMPLES]
    missing = {name for name in commands(typer.main.get_command(app)) if not any(s.startswith(name) for s in shown)}
    assert missing == {"console"}  # docs/console.md is about it


@contextmanager
def shell(home: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell that finds nsctl, and whose name server knows of the topic orders."""
    with NamesrvProcess() as namesrv:
        with namesrv.connect() as client:
            client.registration.RegisterBroker(registration(("orders",)), timeout=client.TIMEOUT)
        path = os.pathsep.join((str(BIN), os.environ["PATH"]))
        yield {**os.environ, "NAMESRV_ADDR": str(namesrv.endpoint), "PATH": path, "HOME": str(home), "SHELL": "bash"}


def lines_of_introduction() -> dict[str, str]:
    """The commands of the introduction, without remarks, by their second word."""
    commands = [re.sub(r" +#.*$", "", line.removeprefix("$ ")) for line in INTRODUCTION.splitlines()]
    return {shlex.split(command)[1]: command for command in commands}


def test_the_introduction_is_the_one_that_is_tried_below() -> None:
    export = "NAMESRV_ADDR=ns-a:9876;ns-b:9876"
    assert set(lines_of_introduction()) == {export, "status", "route", "brokers", "--install-completion"}


def test_a_command_of_the_introduction_that_ends_succeeds(tmp_path: Path) -> None:
    commands = lines_of_introduction()
    tried = ["status", "--install-completion"] + (["brokers"] if shutil.which("jq") else [])
    with shell(tmp_path) as environment:
        for word in tried:
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", f"{commands[word]}\nexit $?"],  # it stays, as a person's shell does
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), commands[word]
        assert (tmp_path / ".bashrc").is_file()


def test_what_the_introduction_filters_brokers_by_is_there(tmp_path: Path) -> None:
    command = lines_of_introduction()["brokers"].partition(" | ")[0]
    with shell(tmp_path) as environment:
        done = subprocess.run(
            shlex.split(command), env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True
        )
    (broker,) = json.loads(done.stdout)
    assert broker["unconfirmed"] is False


def test_a_route_that_is_watched_is_shown_again_every_two_seconds(tmp_path: Path) -> None:
    command = lines_of_introduction()["route"]
    assert command == "nsctl route orders --watch 2"
    shown = tmp_path / "shown"
    with shell(tmp_path) as environment, shown.open("w") as output:
        process = subprocess.Popen([sys.executable, "-m", *shlex.split(command)], env=environment, stdout=output)
        try:
            eventually(lambda: shown.read_text().count("orders as of revision"), lambda count: count >= 2)
        finally:
            process.kill()
            process.wait(TIMEOUT)
