"""The files of deploy/ as the programs see them that they are for. Needs no container engine, only those programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release.engine import REPOSITORY, CommandError, run
from deploy.release.images import cache_folder
from tests.support.programs.agents import Agent, held_port
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import identity, registration

DEPLOY = REPOSITORY / "deploy"
MONITORING = DEPLOY / "monitoring"
OLDEST_KUBERNETES = "1.28"
"""What docs/operating.md promises; the other version checked is the newest that the validator knows."""
OPERATOR_KINDS = {"PodMonitor", "PrometheusRule"}
"""Of the Prometheus operator, which Kubernetes has no schema of."""
KUSTOMIZATIONS = [
    path.parent.relative_to(DEPLOY)
    for path in sorted(DEPLOY.rglob("kustomization.yaml"))
    if "kind: Kustomization" in path.read_text()
]
CERTIFICATE_END = "_certificate_not_after_seconds"
"""What only a program with TLS has; tests/integration/security/test_tls.py sees it there."""


@pytest.fixture(scope="module")
def promtool() -> str:
    """Prometheus' checker: the machine's, or that of Debian's package, which is unpacked and not installed."""
    if found := shutil.which("promtool"):
        return found
    folder = cache_folder() / "prometheus"
    program = folder / "usr/bin/promtool"
    if not program.exists():
        if shutil.which("apt-get") is None:
            pytest.skip("there is no promtool, and no apt-get to bring it")
        folder.mkdir(exist_ok=True)
        try:
            subprocess.run(
                ["apt-get", "download", "-q", "prometheus"], cwd=folder, check=True, capture_output=True, timeout=120
            )
            run(["dpkg", "-x", *map(str, folder.glob("prometheus_*.deb")), str(folder)])
        except (subprocess.SubprocessError, CommandError) as error:
            pytest.skip(f"Debian's package prometheus, which has promtool, cannot be had: {error}")
    return str(program)


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, None], ids=["oldest", "newest"])
@pytest.mark.parametrize("name", KUSTOMIZATIONS, ids=str)
def test_kubernetes_takes_what_kustomize_makes(tools: Path, tmp_path: Path, name: Path, version: str | None) -> None:
    rendered = tmp_path / "rendered.yaml"
    text = run([str(tools / "kubectl"), "kustomize", str(DEPLOY / name)])
    known = [item for item in yaml.safe_load_all(text) if item["kind"] not in OPERATOR_KINDS]
    rendered.write_text(yaml.safe_dump_all(known))
    at = [] if version is None else ["--kubernetes-version", version]
    checked = subprocess.run(
        [str(tools / "kubernetes-validate"), "--strict", *at, str(rendered)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    printed = checked.stdout + checked.stderr
    assert checked.returncode == 0, printed
    assert printed.count(" passed for resource ") == len(known), printed


@pytest.mark.parametrize("profiles", [(), ("--profile", "monitoring")], ids=["plain", "monitoring"])
def test_what_compose_makes_of_the_file_keeps_to_the_specification(
    tools: Path, tmp_path: Path, profiles: tuple[str, ...]
) -> None:
    written = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    wanted = {name for name, service in written.items() if profiles or "profiles" not in service}
    rendered = tmp_path / "compose.yaml"
    rendered.write_text(run([str(tools / "podman-compose"), f"--file={DEPLOY / 'compose.yaml'}", *profiles, "config"]))
    run([str(tools / "check-jsonschema"), "--builtin-schema=vendor.compose-spec", str(rendered)])
    services = yaml.safe_load(rendered.read_text())["services"]
    assert services.keys() == wanted
    assert "${" not in rendered.read_text()
    assert all(service["cap_drop"] == ["ALL"] for service in services.values())
    assert [name for name, service in services.items() if not service.get("read_only")] == ["broker"]


def test_promtool_takes_the_alert_rules_and_the_configuration(promtool: str) -> None:
    run([promtool, "check", "rules", str(MONITORING / "alerts.yaml")])
    run([promtool, "check", "config", str(MONITORING / "prometheus.yml")])


def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    run([promtool, "test", "rules", str(MONITORING / "alerts.test.yaml")])


def _ask(url: str, path: str, **parameters: str) -> Any:
    """What Prometheus' API answers; nothing while it starts."""
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
            return json.load(answer)["data"]
    except OSError:
        return {}


@pytest.mark.timeout(180)
def test_each_panel_shows_something_of_a_name_server_and_an_agent(promtool: str, tmp_path: Path) -> None:
    program = Path(promtool).with_name("prometheus")
    if not program.exists():
        pytest.skip("there is no prometheus beside promtool")
    dashboards = [json.loads(path.read_text()) for path in MONITORING.glob("*.dashboard.json")]
    panels = [panel for dashboard in dashboards for panel in dashboard["panels"]]
    expressions = {target["expr"] for panel in panels for target in panel.get("targets", [])}
    of_certificates = {expression for expression in expressions if CERTIFICATE_END in expression}
    assert len(of_certificates) == len(("of name servers", "of agents"))
    kept = ("--data-dir", str(tmp_path / "kept"), "--snapshot-interval-millis", "100")
    listening = ("--metrics-listen", "127.0.0.1:0", "--remoting-listen", "127.0.0.1:0")
    with (
        NamesrvProcess(*listening, *kept) as namesrv,
        namesrv.connect() as client,
        RemotingClient(str(namesrv.wait_for("namesrv_started")["remoting"])) as of_rocketmq,
        Agent(str(namesrv.endpoint), "--metrics-listen", "127.0.0.1:0") as agent,
        held_port() as port,
    ):
        targets = {
            "namesrv": namesrv.wait_for("namesrv_started")["metrics"],
            "broker-agent": agent.wait_for("agent_started")["metrics"],
        }
        configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["rule_files"] = [str(MONITORING / "alerts.yaml")]
        for scrape in configuration["scrape_configs"]:
            labels = scrape["static_configs"][0]["labels"]
            scrape["static_configs"] = [{"targets": [targets[scrape["job_name"]]], "labels": labels}]
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        url = f"http://127.0.0.1:{port}"

        def series(expression: str) -> list[Any]:
            query = expression.replace("$__rate_interval", "30s").replace("$instance", ".*")
            return list(_ask(url, "query", query=query).get("result", ()))

        def unseen() -> list[str]:
            channel = client.open_channel()
            other = registration(broker=identity(name="broker-b", addr="127.0.0.1:10921"), channel_id=channel.id)
            client.registration.RegisterBroker(other, timeout=client.TIMEOUT)
            assert client.route() is not None
            assert client.route("Nothing") is None
            assert of_rocketmq.ask(105, {"topic": "Nothing"}).code == 17
            channel.close()
            return [expression for expression in expressions - of_certificates if not series(expression)]

        flags = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/prometheus")
        prometheus = subprocess.Popen(
            [str(program), *flags, f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            eventually(unseen, lambda left: not left, within_seconds=90)
            rules = [rule for group in _ask(url, "rules")["groups"] for rule in group["rules"]]
        finally:
            prometheus.terminate()
            prometheus.wait(30)
    assert {rule["name"]: rule["health"] for rule in rules if rule["health"] == "err"} == {}
    assert len(rules) > 10
