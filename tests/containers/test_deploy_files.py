"""The files of deploy/ as the programs see them that they are for. Needs no container engine, only those programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from .engine import REPOSITORY, CommandError, run
from .images import cache_folder

DEPLOY = REPOSITORY / "deploy"
MONITORING = DEPLOY / "monitoring"
KUSTOMIZATIONS = ("base", "overlays/production", "examples/broker", "examples/route-pipeline")
OLDEST_KUBERNETES = "1.28"
"""What docs/operating.md promises; the other version checked is the newest that the validator knows."""
OPERATOR_KINDS = {"PodMonitor", "PrometheusRule"}
"""Of the Prometheus operator, which Kubernetes has no schema of."""
UNITS = ("namesrv.service", "broker-agent@.service")
MOST_EXPOSED = 25
"""What `systemd-analyze security` may count, in tenths: 0 is sealed, 96 is a service without any of its settings."""


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
@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_kubernetes_takes_what_kustomize_makes(tools: Path, tmp_path: Path, name: str, version: str | None) -> None:
    rendered = tmp_path / "rendered.yaml"
    text = run([str(tools / "kubectl"), "kustomize", str(DEPLOY / "kubernetes" / name)])
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


def test_kubernetes_schemas_are_asked_strictly(tools: Path, tmp_path: Path) -> None:
    service = yaml.safe_load((DEPLOY / "kubernetes/base/service-account.yaml").read_text())
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({**service, "publishNotReadyAddress": True}))
    with pytest.raises(CommandError, match="publishNotReadyAddress"):
        run([str(tools / "kubernetes-validate"), "--strict", str(tmp_path / "wrong.yaml")])


def test_promtool_takes_the_alert_rules_and_the_configuration(promtool: str) -> None:
    run([promtool, "check", "rules", str(MONITORING / "alerts.yaml")])
    run([promtool, "check", "config", str(MONITORING / "prometheus.yml")])


def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    run([promtool, "test", "rules", str(MONITORING / "alerts.test.yaml")])


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit_and_finds_it_well_sealed(tmp_path: Path, unit: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    # systemd wants the program to be there: any will do.
    text = (DEPLOY / "systemd" / unit).read_text()
    assert text.count("ExecStart=/opt/namesrv/bin/") == 1
    program = text.split("ExecStart=")[1].split()[0]
    copy = tmp_path / unit.replace("@", "@broker-a")
    copy.write_text(text.replace(program, "/bin/true"))
    analyze = ["systemd-analyze", "--man=no"]
    assert run([*analyze, "verify", "--recursive-errors=no", str(copy)]) == ""
    run([*analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", str(copy)])
