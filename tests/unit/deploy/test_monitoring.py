"""Alert rules, dashboard, and the pages that explain them. promtool checks the expressions in tests/containers."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from tests.unit.deploy.files import (
    DEPLOY,
    KUBERNETES,
    MONITORING,
    ROOT,
    document,
    documents,
    headings,
    kubernetes_objects,
    metric_names,
    the,
)

RULES = [rule for group in document(MONITORING / "alerts.yaml")["groups"] for rule in group["rules"]]
RUNBOOK = ROOT / "docs/runbook.md"
METRICS = ROOT / "docs/metrics.md"
SEVERITIES = {"critical", "warning", "info"}


DASHBOARDS = {"namesrv": "namesrv_", "broker-agent": "broker_agent_"}
"""Jobs, each with a dashboard, and how metrics of theirs begin."""


@pytest.fixture(params=DASHBOARDS)
def job(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dashboard(job: str) -> dict[str, Any]:
    loaded = json.loads((MONITORING / f"{job}.dashboard.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


@pytest.fixture(scope="module")
def documented() -> set[str]:
    """Every name that the page of metrics has. That those are the programs' own is tests/integration's to show."""
    rows = re.findall(r"^\| (`.+?`) \| (\w+) \|", METRICS.read_text(), re.MULTILINE)
    names = {name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)}
    timed = {name for cell, kind in rows if kind == "histogram" for name in re.findall(r"`(\w+)`", cell)}
    return names | {f"{name}_{part}" for name in timed for part in ("bucket", "count", "sum")}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_rule_is_complete_and_has_a_paragraph_of_what_to_do(
    rule: dict[str, Any], documented: set[str]
) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"[A-Z][A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smhd]", rule.get("for", "1m"))
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    host, _, file = page.rpartition("/")
    assert file == RUNBOOK.name
    assert f"{host}/" in RUNBOOK.read_text(), "the page says how to put another one in"
    assert anchor == rule["alert"].lower()
    assert len(headings(RUNBOOK)[anchor]) > 200
    assert metric_names(rule["expr"]) <= documented


def test_every_alert_has_a_name_of_its_own_and_every_paragraph_an_alert() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    paragraphs = re.findall(r"^### (.+)$", RUNBOOK.read_text().split("\n## Alerts\n")[1], re.MULTILINE)
    assert paragraphs == names


def test_every_alert_is_fired_by_a_test_and_the_runbooks_table_has_what_it_said() -> None:
    said: dict[str, str] = {}
    for case in document(MONITORING / "alerts.test.yaml")["tests"]:
        for asked in case["alert_rule_test"]:
            for alert in asked.get("exp_alerts", ()):
                said.setdefault(asked["alertname"], alert["exp_annotations"]["summary"])
    wanted = [
        f"| [{rule['alert']}](#{rule['alert'].lower()}) | {rule['labels']['severity']} | {rule.get('for', 'at once')} "
        f"| {said[rule['alert']]} |"
        for rule in RULES
    ]
    assert re.findall(r"^\| \[.+$", RUNBOOK.read_text(), re.MULTILINE) == wanted


def test_the_operators_rule_is_the_same_as_prometheus_own() -> None:
    assert document(MONITORING / "prometheus-rule.yaml")["spec"] == document(MONITORING / "alerts.yaml")


def test_what_inhibits_and_is_inhibited_are_alerts_that_have_the_labels_that_must_be_equal() -> None:
    names = {rule["alert"]: rule for rule in RULES}
    for rule in document(MONITORING / "alertmanager.yml")["inhibit_rules"]:
        (source,), (target,) = rule["source_matchers"], rule["target_matchers"]
        for name in re.findall(r"[A-Z][A-Za-z]+", f"{source} {target}"):
            grouped = re.search(r"^\s*(?:sum|count|max|min) by \(([^)]*)\)", names[name]["expr"])
            labels = {"fleet", "instance"} if grouped is None else set(re.split(r",\s*", grouped[1]))
            wanted = set(rule["equal"])
            assert wanted <= labels or "histogram_quantile" in names[name]["expr"], name


def test_every_fleet_has_a_name_that_alerts_group_by() -> None:
    for scrape in document(MONITORING / "prometheus.yml")["scrape_configs"]:
        assert [targets["labels"] for targets in scrape["static_configs"]] == [{"fleet": "main"}]
    for monitor in documents(MONITORING / "pod-monitor.yaml"):
        relabelings = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
        assert {"replacement": "main", "targetLabel": "fleet"} in relabelings
    joined = [rule["expr"] for rule in RULES if re.search(r"\b(by|on) \(", rule["expr"])]
    assert joined
    assert [expression for expression in joined if "(fleet" not in expression] == []


def test_alerts_count_on_the_job_that_is_scraped_under_that_name() -> None:
    used = {job for rule in RULES for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    scraped = {scrape["job_name"]: scrape for scrape in document(MONITORING / "prometheus.yml")["scrape_configs"]}
    assert used == scraped.keys() == DASHBOARDS.keys()
    compose = document(DEPLOY / "compose.yaml")["services"]
    for job, scrape in scraped.items():
        for target in scrape["static_configs"][0]["targets"]:
            host, _, port = target.partition(":")
            variable = f"{job.replace('-', '_').upper()}_METRICS_LISTEN"
            assert compose[host]["environment"][variable] == f"0.0.0.0:{port}"


def test_the_operator_finds_the_pods_and_gives_them_the_jobs_that_alerts_count_on() -> None:
    servers, agents = (monitor["spec"] for monitor in documents(MONITORING / "pod-monitor.yaml"))
    objects = kubernetes_objects(KUBERNETES / "base", KUBERNETES / "examples/broker")
    for monitor, name in ((servers, "namesrv"), (agents, "broker-a")):
        template = the("StatefulSet", name, objects)["spec"]["template"]
        assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
        assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports
    assert servers["jobLabel"] == "app.kubernetes.io/name"
    relabelings = agents["podMetricsEndpoints"][0]["relabelings"]
    assert {"replacement": "broker-agent", "targetLabel": "job"} in relabelings


def test_every_file_that_compose_mounts_is_there() -> None:
    for service in document(DEPLOY / "compose.yaml")["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).is_file()


def test_only_who_asks_for_monitoring_gets_it() -> None:
    services = document(DEPLOY / "compose.yaml")["services"]
    assert {name for name, service in services.items() if service.get("profiles") == ["monitoring"]} == {
        "prometheus",
        "grafana",
    }


def test_every_expression_of_the_dashboard_is_of_metrics_that_there_are(
    job: str, dashboard: dict[str, Any], documented: set[str]
) -> None:
    shown = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            names = metric_names(target["expr"])
            assert names or "up{" in target["expr"]
            shown |= names
    assert shown <= documented
    shown |= {name.removesuffix("_bucket") for name in shown}  # a histogram is shown by its buckets
    ours = {name for name in documented if name.startswith(DASHBOARDS[job])}
    ours = {name for name in ours if not name.endswith(("_bucket", "_count", "_sum"))}
    assert ours - shown == set(), "each of our own has a place"


def test_panels_lie_side_by_side_and_each_is_told_apart(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24, "Grafana's grid has 24 columns"


def test_panels_take_the_data_source_that_is_chosen(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query"}
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    for source in itertools.chain(panels, *(panel["targets"] for panel in panels)):
        assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0
