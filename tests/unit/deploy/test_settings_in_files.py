"""Every flag, variable and key in deploy/ and on pages is a setting of the program that gets it, with a valid value."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from namesrv_common.process.settings_cli import ADVANCED
from route_pipeline import commands as route_pipeline_commands
from tests.unit.deploy.files import (
    DEPLOY,
    KUBERNETES,
    PROGRAMS,
    ROOT,
    document,
    image_environment,
    kubernetes_objects,
    load,
    pod_templates,
)

SHELL_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")
"""A variable of compose with its default."""
SERVICES = document(DEPLOY / "compose.yaml")["services"]
COMPOSE = {name: service for name, service in SERVICES.items() if service["image"].split(":")[0] in PROGRAMS}


def commands_of_pages() -> Iterator[tuple[str, str]]:
    """Each whole command on a page that starts a program: the program and its flags."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
        yield from re.findall(r"^[$#] (namesrv|broker-agent) serve (--[^>#\n]+)", text, re.MULTILINE)


def test_a_command_on_a_page_gives_settings_that_the_program_takes() -> None:
    commands = list(commands_of_pages())
    assert len(commands) > 10
    for program, flags in commands:
        pairs = re.sub(r"(--[\w-]+) ([^-\s])", r"\1=\2", flags)
        load(program, shlex.split(pairs), {})


def test_the_programs_have_at_most_70_settings_and_show_24_first() -> None:
    fields = [settings.model_fields.values() for settings in PROGRAMS.values()]
    assert sum(map(len, fields)) <= 70
    assert all(sum(field.json_schema_extra != ADVANCED for field in each) <= 24 for each in fields)


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_gives_settings_that_the_program_takes(name: str) -> None:
    service = COMPOSE[name]
    program = service["image"].split(":")[0]
    verb, *arguments = [SHELL_DEFAULT.sub(r"\1", argument) for argument in service["command"]]
    assert verb == "serve"
    given = {key: SHELL_DEFAULT.sub(r"\1", value) for key, value in service.get("environment", {}).items()}
    loaded = load(program, arguments, {**image_environment(program), **given})
    if program == "namesrv":
        assert (loaded.listen, loaded.remoting_listen) == ("0.0.0.0:9878", "0.0.0.0:9876")


def test_the_cron_job_gives_flags_that_the_pipeline_takes() -> None:
    (template,) = pod_templates(kubernetes_objects(KUBERNETES / "examples/route-pipeline"))
    (job,) = template["spec"]["containers"]
    verb, *arguments = job["args"]
    ingest = typer.main.get_command(route_pipeline_commands.app).commands[verb]  # type: ignore[attr-defined]  # a group
    assert len(ingest.make_context(verb, list(arguments)).params["namesrv"]) == 3


@pytest.mark.parametrize(
    ("program", "file", "unit"),
    [("namesrv", "namesrv.toml", "namesrv.service"), ("broker-agent", "broker-a.toml", "broker-agent@.service")],
)
def test_systemd_starts_the_program_with_a_file_that_it_takes(program: str, file: str, unit: str) -> None:
    keys = tomllib.loads((DEPLOY / "systemd" / file).read_text())
    loaded = load(program, [], {}, DEPLOY / "systemd" / file)
    assert {key: loaded.model_dump(mode="json")[key] for key in keys} == keys
    (line,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "systemd" / unit).read_text(), re.MULTILINE)
    executable, verb, *arguments = line.split()
    assert (Path(executable).name, verb, arguments[0]) == (program, "serve", "--config")
    assert arguments[1] == f"/etc/{program}/{file}".replace("broker-a.toml", "%i.toml")
    load(program, [f"{arguments[2]}={arguments[3]}"], {}, DEPLOY / "systemd" / file)


def test_the_socket_unit_listens_where_the_name_server_beside_it_does() -> None:
    settings = tomllib.loads((DEPLOY / "systemd/namesrv.toml").read_text())
    listens = re.findall(r"^ListenStream=(.*)$", (DEPLOY / "systemd/namesrv.socket").read_text(), re.MULTILINE)
    assert listens == [settings["remoting_listen"], settings["listen"]]
