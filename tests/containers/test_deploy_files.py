"""The files of deploy/ as the programs see them that they are for. Needs no container engine, only those programs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release.engine import CommandError, run
from deploy.release.images import cache_folder
from tests.unit.deploy.files import DEPLOY, KUBERNETES, PROGRAMS, of_container, pod_templates

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


def test_kubernetes_gives_settings_that_the_programs_take(tools: Path) -> None:
    def containers(folder: str) -> Iterator[dict[str, Any]]:
        text = run([str(tools / "kubectl"), "kustomize", str(KUBERNETES / folder)])
        for template in pod_templates(list(yaml.safe_load_all(text))):
            yield from (one for one in template["spec"]["containers"] if one["name"] in PROGRAMS)

    assert [of_container(one).listen for one in containers("base")] == ["0.0.0.0:9878"]
    assert [of_container(one).remoting_listen for one in containers("overlays/rocketmq")] == ["0.0.0.0:9876"]
    (server,) = containers("overlays/production-tls")
    assert of_container(server).listens_with_tls
    assert not [probe for probe in server.values() if isinstance(probe, dict) and "grpc" in probe], "they know no TLS"
    assert [of_container(one).tls_server_name for one in containers("examples/broker")] == [None]
    (agent,) = map(of_container, containers("examples/broker-tls"))
    assert [f"{agent.tls_server_name}:9878"] == agent.namesrv, "what the certificate of the name servers is for"
    assert agent.tls_server_name in (KUBERNETES / "components/tls/kustomization.yaml").read_text()


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
