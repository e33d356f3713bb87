"""Every flag, variable and key in deploy/ and on pages is a setting of the program that gets it, with a valid value."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from broker_agent.settings import AgentSettings
from namesrv.settings import NamesrvSettings
from namesrv_common.process.settings_cli import ADVANCED, ProgramSettings
from route_pipeline import commands as route_pipeline_commands
from tests.unit.deploy.files import (
    DEPLOY,
    KUBERNETES,
    ROOT,
    container,
    document,
    image_environment,
    kubernetes_objects,
    pod_templates,
)

PROGRAMS: dict[str, type[ProgramSettings]] = {"namesrv": NamesrvSettings, "broker-agent": AgentSettings}
SHELL_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")
"""A variable of compose with its default."""
SERVICES = document(DEPLOY / "compose.yaml")["services"]
COMPOSE = {name: service for name, service in SERVICES.items() if service["image"].split(":")[0] in PROGRAMS}


def load(program: str, arguments: list[str], environment: dict[str, str], file: Path | None = None) -> Any:
    """The settings that a program would come to; fails as it would."""
    settings = PROGRAMS[program]
    prefix = str(settings.model_config["env_prefix"])
    given: dict[str, Any] = {
        name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)
    }
    for argument in arguments:
        assert argument.startswith("--"), argument
        key, _, value = argument.removeprefix("--").partition("=")
        given[key.replace("-", "_")] = value or True
    unknown = given.keys() - settings.model_fields.keys()
    assert not unknown, f"{program} has no settings {unknown}"
    return settings.load(file, given)


def of_container(found: dict[str, Any]) -> Any:
    """The settings of the program of a container."""
    program = found["image"].split(":")[0]
    environment = {item["name"]: item.get("value", "1") for item in found.get("env", ())}
    verb, *arguments = [argument.replace("$(POD_IP)", "10.0.0.1") for argument in found["args"]]
    assert verb == "serve"
    return load(program, arguments, {**image_environment(program), **environment})


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


def test_kubernetes_gives_settings_that_the_programs_take() -> None:
    assert of_container(container("base", "namesrv")).listen == "0.0.0.0:9878"
    assert of_container(container("base", "namesrv", "rocketmq")).remoting_listen == "0.0.0.0:9876"
    server = container("base", "namesrv", "tls")
    overlaid = document(KUBERNETES / "overlays/production/stateful-set.yaml")["spec"]["template"]["spec"]
    load("namesrv", [], {item["name"]: item["value"] for item in overlaid["containers"][0].get("env", ())})
    assert of_container({**server, "env": []}).listens_with_tls
    assert not [probe for probe in server.values() if isinstance(probe, dict) and "grpc" in probe], "they know no TLS"
    of_container(container("examples/broker", "broker-agent"))
    agent = of_container(container("examples/broker", "broker-agent", "agent-tls"))
    assert [f"{agent.tls_server_name}:9878"] == agent.namesrv, "what the certificate of the name servers is for"
    assert agent.tls_server_name in (KUBERNETES / "components/tls/kustomization.yaml").read_text()


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
