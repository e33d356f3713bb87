"""The manifests, rules and dashboards of deploy/, and the settings that they and pages give: a program takes them all.

tests/containers asks Kubernetes' schemas and promtool.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

MONITORING = DEPLOY / "monitoring"
RULES = [rule for group in document(MONITORING / "alerts.yaml")["groups"] for rule in group["rules"]]
DASHBOARDS = {"namesrv": "namesrv_", "broker-agent": "broker_agent_"}
"""Jobs, each with a dashboard, and how metrics of theirs begin."""
FOLDERS = (KUBERNETES / "base", KUBERNETES / "examples/broker", KUBERNETES / "examples/route-pipeline")
IMAGE_USER = 10001
"""uid and gid of both images."""


def metric_names(expression: str) -> set[str]:
    """Names of metrics in a PromQL expression, of this project and of the process."""
    without_labels = re.sub(r'\{[^}]*\}|"[^"]*"|\b(?:by|without|on|ignoring)\s*\([^)]*\)|\[[^\]]*\]', " ", expression)
    return set(re.findall(r"\b(?:namesrv|broker_agent|grpc|process|python)_\w+", without_labels))


@pytest.fixture(scope="module")
def documented() -> set[str]:
    """Every name of the page of metrics, which tests/integration/observability compares with the programs."""
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    names = {name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)}
    timed = {name for cell, kind in rows if kind == "histogram" for name in re.findall(r"`(\w+)`", cell)}
    return names | {f"{name}_{part}" for name in timed for part in ("bucket", "count", "sum")}


@pytest.mark.parametrize("template", list(pod_templates(kubernetes_objects(*FOLDERS))))
def test_pods_have_no_rights_that_they_do_not_need(template: dict[str, Any]) -> None:
    pod = template["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
        if container["name"] != "broker":  # whose image is another project's
            assert context["readOnlyRootFilesystem"] is True
            assert context.get("runAsUser", pod["securityContext"].get("runAsUser")) == IMAGE_USER


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_of_metrics_that_exist_and_is_in_the_runbook(rule: dict[str, Any], documented: set[str]) -> None:
    assert metric_names(rule["expr"]) <= documented
    assert f"\n### {rule['alert']}\n" in (ROOT / "docs/runbook.md").read_text()
    assert rule["annotations"]["runbook_url"].endswith(f"/runbook.md#{rule['alert'].lower()}")


def test_every_alert_is_fired_by_promtools_test_and_is_the_operators_too() -> None:
    tests = document(MONITORING / "alerts.test.yaml")["tests"]
    fired = {one["alertname"] for case in tests for one in case["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in RULES}
    assert document(MONITORING / "prometheus-rule.yaml")["spec"] == document(MONITORING / "alerts.yaml")


@pytest.mark.parametrize("job", DASHBOARDS)
def test_a_dashboard_shows_each_metric_of_its_job_and_no_other(job: str, documented: set[str]) -> None:
    panels = json.loads((MONITORING / f"{job}.dashboard.json").read_text())["panels"]
    targets = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    shown = set().union(*map(metric_names, targets))
    assert shown <= documented
    ours = {name for name in documented if name.startswith(DASHBOARDS[job])}
    shown |= {name.removesuffix("_bucket") for name in shown}  # a histogram is shown by its buckets
    assert {name for name in ours if not name.endswith(("_bucket", "_count", "_sum"))} <= shown


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
