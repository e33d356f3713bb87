"""Every flag, variable and key in deploy/ is a setting of the program that gets it, with a value that it takes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from broker_agent.settings import AgentSettings
from groundwork.settings_cli import ADVANCED, ProgramSettings
from namesrv.settings import NamesrvSettings
from route_pipeline import commands as route_pipeline_commands
from tests.unit.deploy.files import (
    DEPLOY,
    KUBERNETES,
    document,
    documents,
    image_environment,
    kubernetes_objects,
    patched,
    pod_templates,
    rocketmq_container,
    the,
)

PROGRAMS: dict[str, type[ProgramSettings]] = {"namesrv": NamesrvSettings, "broker-agent": AgentSettings}
SHELL_DEFAULT = re.compile(r"\$\{\w+:-([^}]*)\}")
"""A variable of compose with its default."""
FOLDERS = (KUBERNETES / "base", KUBERNETES / "examples/broker", KUBERNETES / "examples/route-pipeline")


def load(program: str, arguments: list[str], environment: dict[str, str], file: Path | None = None) -> ProgramSettings:
    """The settings that a program would come to; fails as it would. Flags must be written as --name=value."""
    settings = PROGRAMS[program]
    prefix = str(settings.model_config["env_prefix"])
    given: dict[str, Any] = {}
    for name, value in environment.items():
        if name.startswith(prefix):
            given[name.removeprefix(prefix).lower()] = value
    for argument in arguments:
        assert argument.startswith("--"), argument
        key, _, value = argument.removeprefix("--").partition("=")
        given[key.replace("-", "_")] = value or True
    unknown = given.keys() - settings.model_fields.keys()
    assert not unknown, f"{program} has no settings {unknown}"
    return settings.load(file, given)


def compose_services() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, service in document(DEPLOY / "compose.yaml")["services"].items():
        if service["image"].split(":")[0] in PROGRAMS:
            yield name, service


def test_each_shipped_name_server_serves_rocketmqs_brokers_clients_and_mqadmin_at_9876() -> None:
    container = rocketmq_container()
    compose = [service for name, service in compose_services() if name.startswith("namesrv")]
    everywhere = [
        load("namesrv", [], {}, DEPLOY / "systemd/namesrv.toml"),
        load("namesrv", container["args"][1:], image_environment("namesrv")),
        *(load("namesrv", [], {**image_environment("namesrv"), **service["environment"]}) for service in compose),
    ]
    assert len(everywhere) == 4
    for settings in everywhere:
        assert isinstance(settings, NamesrvSettings)
        assert (settings.listen, settings.remoting_listen) == ("0.0.0.0:9878", "0.0.0.0:9876")
        assert settings.remoting_allow == "lookups,registrations,operators"


def containers() -> Iterator[dict[str, Any]]:
    for template in pod_templates(kubernetes_objects(*FOLDERS)):
        yield from template["spec"]["containers"]


def test_the_programs_have_at_most_90_settings_and_each_shows_at_most_24_first() -> None:
    programs: list[type[ProgramSettings]] = list(PROGRAMS.values())
    fields = [settings.model_fields.values() for settings in programs]
    assert sum(map(len, fields)) <= 90
    assert all(sum(field.json_schema_extra != ADVANCED for field in each) <= 24 for each in fields)


def test_the_socket_unit_listens_where_the_name_server_beside_it_does() -> None:
    unit = (DEPLOY / "systemd/namesrv.socket").read_text()
    settings = tomllib.loads((DEPLOY / "systemd/namesrv.toml").read_text())
    listens = [settings["remoting_listen"], settings["listen"]]
    assert re.findall(r"^ListenStream=(.*)$", unit, re.MULTILINE) == listens


def test_a_file_that_allows_insecure_beyond_loopback_says_why_first() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".toml"} and ".patch" not in path.suffixes]
    allows = re.compile("^[^#]*allow.insecure", re.IGNORECASE | re.MULTILINE)
    texts = [text for text in (path.read_text() for path in files) if allows.search(text)]
    assert len(texts) == len(("compose", "Kubernetes", "systemd"))
    assert [text for text in texts if not text.startswith("# Listens on 0.0.0.0 with allow_insecure: ")] == []


@pytest.mark.parametrize(("name", "service"), list(compose_services()))
def test_compose_gives_settings_that_the_program_takes(name: str, service: dict[str, Any]) -> None:
    program = service["image"].split(":")[0]
    verb, *arguments = [SHELL_DEFAULT.sub(r"\1", argument) for argument in service["command"]]
    assert verb == "serve"
    loaded = load(program, arguments, {**image_environment(program), **service.get("environment", {})})
    assert isinstance(loaded, PROGRAMS[program])


def test_kubernetes_gives_settings_that_the_program_takes() -> None:
    seen = []
    for container in containers():
        program = container["image"].split(":")[0]
        if program not in PROGRAMS:
            continue
        environment = {item["name"]: item.get("value", "1") for item in container["env"]}
        verb, *arguments = [argument.replace("$(POD_IP)", "10.0.0.1") for argument in container["args"]]
        assert verb == "serve"
        assert not [argument for argument in arguments if "$(" in argument], "a variable that is not given"
        load(program, arguments, {**image_environment(program), **environment})
        seen.append(program)
    assert sorted(seen) == ["broker-agent", "namesrv"]


def test_the_production_overlay_and_the_component_for_tls_add_settings_that_the_program_takes() -> None:
    server = the("StatefulSet", "namesrv", kubernetes_objects(KUBERNETES / "base"))
    (tls,) = documents(KUBERNETES / "components/tls/stateful-set.patch.yaml")
    (container,) = patched(server, tls)["spec"]["template"]["spec"]["containers"]
    overlay = document(KUBERNETES / "overlays/production/stateful-set.yaml")
    (overlaid,) = overlay["spec"]["template"]["spec"]["containers"]
    environment = {item["name"]: item["value"] for item in overlaid.get("env", ())}
    loaded = load("namesrv", container["args"][1:], {**image_environment("namesrv"), **environment})
    assert isinstance(loaded, NamesrvSettings)
    assert loaded.listens_with_tls
    assert not loaded.allow_insecure
    (secret,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "tls"]
    assert {str(path.parent) for path in (loaded.tls_cert, loaded.tls_key, loaded.tls_client_ca) if path} == {secret}
    of_nsctl = {item["name"].removeprefix("NSCTL_"): item["value"] for item in container["env"] if "value" in item}
    assert of_nsctl.pop("TLS_SERVER_NAME") in (KUBERNETES / "components/tls/kustomization.yaml").read_text()
    files = {"TLS_CA": loaded.tls_client_ca, "TLS_CERT": loaded.tls_cert, "TLS_KEY": loaded.tls_key}
    assert of_nsctl == {name: str(path) for name, path in files.items()}
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert paths == ["/healthz", "/healthz", "/readyz"], "gRPC probes know no TLS"
    assert not [probe for probe in ("startupProbe", "livenessProbe", "readinessProbe") if "grpc" in container[probe]]


def test_the_component_for_agents_with_tls_adds_settings_that_the_program_takes_and_the_name_servers_have() -> None:
    broker = the("StatefulSet", "broker-a", kubernetes_objects(KUBERNETES / "examples/broker"))
    (tls,) = documents(KUBERNETES / "components/agent-tls/stateful-set.patch.yaml")
    spec = patched(broker, tls)["spec"]["template"]["spec"]
    agent = next(container for container in spec["containers"] if container["name"] == "broker-agent")
    arguments = [argument.replace("$(POD_IP)", "10.0.0.1") for argument in agent["args"][1:]]
    loaded = load("broker-agent", arguments, {**image_environment("broker-agent"), "BROKER_AGENT_BROKER_ID": "0"})
    assert isinstance(loaded, AgentSettings)
    (secret,) = [mount["mountPath"] for mount in agent["volumeMounts"] if mount["name"] == "tls"]
    assert {str(path.parent) for path in (loaded.tls_cert, loaded.tls_key, loaded.tls_ca) if path} == {secret}
    assert loaded.listens_with_tls
    assert [f"{loaded.tls_server_name}:9878"] == loaded.namesrv, "what the certificate of the name servers is for"
    names = (KUBERNETES / "components/tls/kustomization.yaml").read_text()
    assert str(loaded.tls_server_name) in names


def test_the_cron_job_gives_flags_that_the_pipeline_takes() -> None:
    (container,) = [container for container in containers() if "route-pipeline" in container["image"]]
    command = typer.main.get_command(route_pipeline_commands.app)
    verb, *arguments = container["args"]
    ingest = command.commands[verb]  # type: ignore[attr-defined]  # a group
    context = ingest.make_context(verb, list(arguments))
    assert len(context.params["namesrv"]) == 3


@pytest.mark.parametrize(
    ("program", "file", "unit"),
    [
        ("namesrv", "namesrv.toml", "namesrv.service"),
        ("broker-agent", "broker-a.toml", "broker-agent@.service"),
    ],
)
def test_systemd_starts_the_program_with_a_file_that_it_takes(program: str, file: str, unit: str) -> None:
    keys = tomllib.loads((DEPLOY / "systemd" / file).read_text())
    assert keys.keys() <= PROGRAMS[program].model_fields.keys()
    loaded = load(program, [], {}, DEPLOY / "systemd" / file)
    assert {key: loaded.model_dump(mode="json")[key] for key in keys} == keys
    text = (DEPLOY / "systemd" / unit).read_text()
    (line,) = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
    executable, verb, *arguments = line.split()
    assert (Path(executable).name, verb, arguments[0]) == (program, "serve", "--config")
    assert arguments[1] == f"/etc/{program}/{file}".replace("broker-a.toml", "%i.toml")
    load(program, [f"{arguments[2]}={arguments[3]}"], {}, DEPLOY / "systemd" / file)


def test_the_unit_owns_the_data_directory_of_its_file() -> None:
    keys = tomllib.loads((DEPLOY / "systemd/namesrv.toml").read_text())
    assert "StateDirectory=namesrv\n" in (DEPLOY / "systemd/namesrv.service").read_text()
    assert keys["data_dir"] == "/var/lib/namesrv"
