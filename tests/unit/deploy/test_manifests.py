"""The manifests, rules and dashboards of deploy/. tests/containers asks Kubernetes' schemas and promtool."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.files import DEPLOY, KUBERNETES, ROOT, document, documents, kubernetes_objects, pod_templates

MONITORING = DEPLOY / "monitoring"
RULES = [rule for group in document(MONITORING / "alerts.yaml")["groups"] for rule in group["rules"]]
DASHBOARDS = {"namesrv": "namesrv_", "broker-agent": "broker_agent_"}
"""Jobs, each with a dashboard, and how metrics of theirs begin."""
FOLDERS = (KUBERNETES / "base", KUBERNETES / "examples/broker", KUBERNETES / "examples/route-pipeline")
YAML_FILES = sorted(set(DEPLOY.rglob("*.y*ml")) - set(DEPLOY.glob("helm/templates/*")))
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


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_yaml_file_parses_and_gives_no_key_twice(path: Path) -> None:
    assert documents(path)


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
