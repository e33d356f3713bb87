"""The files of deploy/ as the programs see them that they are for. Needs no container engine, only those programs.

The chart of deploy/helm, as Helm renders it, is compared with what kustomize makes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from namesrv.settings import NamesrvSettings
from namesrv_common.server.permits import read_permits
from namesrv_common.version import __version__
from release.bundle import chart as packed_chart
from release.engine import REPOSITORY, CommandError, run
from release.images import cache_folder
from tests.unit.deploy.files import DEPLOY, KUBERNETES, PROGRAMS, of_container, pod_templates

MONITORING = DEPLOY / "monitoring"
OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.28", "1.37"
"""What docs/operating.md and Chart.yaml promise, and the newest that the validator knows."""
OTHERS_KINDS = {"PodMonitor", "PrometheusRule", "Certificate"}
"""Of the Prometheus operator and cert-manager, which Kubernetes has no schema of."""
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
            run(["apt-get", "download", "-q", "prometheus"], folder=str(folder), timeout=120)
            run(["dpkg", "-x", *map(str, folder.glob("prometheus_*.deb")), str(folder)])
        except (subprocess.SubprocessError, CommandError) as error:
            pytest.skip(f"Debian's package prometheus, which has promtool, cannot be had: {error}")
    return str(program)


def check_kubernetes_takes(objects: list[dict[str, Any]], version: str, tools: Path, tmp_path: Path) -> None:
    """Validates objects by the schemas of a version of Kubernetes."""
    known = [item for item in objects if item["kind"] not in OTHERS_KINDS]
    file = tmp_path / "rendered.yaml"
    file.write_text(yaml.safe_dump_all(known))
    printed = run([str(tools / "kubernetes-validate"), "--strict", "--kubernetes-version", version, str(file)])
    assert printed.count(" passed for resource ") == len(known), printed


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
@pytest.mark.parametrize("name", KUSTOMIZATIONS, ids=str)
def test_kubernetes_takes_what_kustomize_makes(tools: Path, tmp_path: Path, name: Path, version: str) -> None:
    text = run([str(tools / "kubectl"), "kustomize", str(DEPLOY / name)])
    check_kubernetes_takes(list(yaml.safe_load_all(text)), version, tools, tmp_path)


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


# The chart

CHART = REPOSITORY / "deploy/helm"
SET_BY_THE_CHART = {
    "listen", "name", "data_dir", "metrics_listen", "remoting_listen", "allow_insecure", "tls_cert", "tls_key",
    "tls_client_ca", "permits_file", "engine",
}  # fmt: skip
CUT_OFF = {"product_env_namesrv"}
"""Settings for which a name server would open connections, which the NetworkPolicy refuses."""
CUSTOMARY_LABELS = ("app.kubernetes.io/", "helm.sh/")
"""On objects they are for people: Helm and kustomize add different ones."""
PRODUCTION = {
    "image": "registry.example.org/namesrv:0.2.0",
    "antiAffinity": "required",
    "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
}
README = (REPOSITORY / "deploy/README.md").read_text(encoding="utf-8")
DOCUMENTED: dict[str, Any] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)[0])
"""The values of the page."""
FULL: dict[str, Any] = {
    **PRODUCTION,
    "replicas": 5,
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"journal_max_bytes": 67108864, "support_acting_master": True, "order_message_enable": False},
    "rocketmq": {"enabled": True},
    "tls": {"issuer": {"name": "ca", "kind": "ClusterIssuer"}},
    "permits": DOCUMENTED["permits"],
    "storage": {"className": "fast"},
    "nodeSelector": {"pool": "namesrv"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "console": {"enabled": True, "from": [{"podSelector": {"matchLabels": {"app": "proxy"}}}]},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}, "runbook_url": "https://wiki.example/runbook"},
    "exampleBroker": {"enabled": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def helm() -> str:
    """Helm, which .ci/run compiles."""
    try:
        return run(["sh", str(REPOSITORY / "tests/containers/install_helm.sh"), "--present"])
    except CommandError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def rendered(
    helm: str, values: dict[str, Any], *, release: str = "namesrv", version: str = OLDEST_KUBERNETES, path: Path = CHART
) -> list[dict[str, Any]]:
    """The objects that the chart becomes with these values."""
    done = subprocess.run(
        [helm, "template", release, str(path), "--namespace=namesrv", f"--kube-version={version}", "--values=-"],
        input=yaml.safe_dump(values), check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode != 0:
        raise CommandError(done.stderr)
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def alike(value: Any) -> Any:
    """The value without the label of the release, and with flags and variables in one order."""
    if isinstance(value, list):
        return [alike(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: alike(item) for key, item in value.items() if key != "app.kubernetes.io/instance"}
    if "args" in result:
        result["args"].sort()
        result.get("env", []).sort(key=lambda variable: variable["name"])
    return result


def by_name(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The objects by kind and name, each of them once, without the labels of objects that select nothing."""
    result = {}
    for item in map(alike, objects):
        labels = item["metadata"].pop("labels", {})
        item["metadata"]["labels"] = {key: labels[key] for key in labels if not key.startswith(CUSTOMARY_LABELS)}
        result[f"{item['kind']} {item['metadata']['name']}"] = item
    assert len(result) == len(objects)
    return result


def test_helm_lint_finds_nothing(helm: str) -> None:
    printed = run([helm, "lint", "--strict", str(CHART)])
    assert "[WARNING]" not in printed
    assert "[ERROR]" not in printed


@pytest.mark.parametrize(
    ("values", "folder"),
    [
        ({}, "base"),
        ({"rocketmq": {"enabled": True}}, "overlays/rocketmq"),
        (PRODUCTION, "overlays/production"),
        (PRODUCTION | {"tls": {"secretName": "namesrv-tls"}}, "overlays/production-tls"),
        (PRODUCTION | {"monitoring": {"enabled": True}}, "overlays/production"),
        ({"exampleBroker": {"enabled": True}}, "examples/broker"),
        ({"exampleBroker": {"enabled": True}, "tls": {"secretName": "namesrv-tls"}}, "examples/broker-tls"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_chart_makes_the_objects_of_kustomize(
    helm: str, tools: Path, tmp_path: Path, values: dict[str, Any], folder: str
) -> None:
    parts = {"resources": [KUBERNETES / folder], "components": [MONITORING] if "monitoring" in values else []}
    relative = {kind: [os.path.relpath(path, tmp_path) for path in paths] for kind, paths in parts.items()}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({**relative, "namespace": "namesrv"}))
    text = run([str(tools / "kubectl"), "kustomize", str(tmp_path)])
    wanted = by_name([item for item in yaml.safe_load_all(text) if item["kind"] != "Namespace"])
    made = by_name(rendered(helm, values))
    assert {name: made.get(name) for name in wanted} == wanted
    if not folder.startswith("examples/"):
        assert made.keys() == wanted.keys()


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
@pytest.mark.parametrize("values", [FULL, DOCUMENTED], ids=["full", "documented"])
def test_kubernetes_takes_what_the_chart_makes(
    helm: str, tools: Path, tmp_path: Path, values: dict[str, Any], version: str
) -> None:
    check_kubernetes_takes(rendered(helm, values, version=version), version, tools, tmp_path)


def test_the_packed_chart_makes_the_same_objects(helm: str, tmp_path: Path) -> None:
    assert rendered(helm, FULL, path=packed_chart(tmp_path)) == rendered(helm, FULL)


def test_full_values_reach_the_objects_that_they_are_for(helm: str, tmp_path: Path) -> None:
    made = by_name(rendered(helm, FULL, release="prod"))
    (server,) = made["StatefulSet prod"]["spec"]["template"]["spec"]["containers"]
    assert {
        "--journal-max-bytes=67108864", "--support-acting-master", "--no-order-message-enable",
        "--remoting-listen=0.0.0.0:9876", "--permits-file=/etc/namesrv/permits/permits.json",
    } <= set(server["args"])  # fmt: skip
    domain = "prod-agents.namesrv.svc.cluster.local"
    certificate = made["Certificate prod"]["spec"]
    assert certificate["dnsNames"] == ["prod.namesrv.svc.cluster.local", domain, f"*.{domain}"]
    console = made["Deployment prod-console"]["spec"]["template"]["spec"]
    for pod in (made["StatefulSet prod"]["spec"]["template"]["spec"], console):
        assert certificate["secretName"] in [volume.get("secret", {}).get("secretName") for volume in pod["volumes"]]
    addresses = ";".join(f"prod-{number}.{domain}:9878" for number in range(5))
    assert f"--namesrv={addresses}" in console["containers"][0]["args"]
    agent = made["StatefulSet broker-a"]["spec"]["template"]["spec"]["containers"][1]
    assert f"--namesrv={domain}:9878" in agent["args"]
    assert made["NetworkPolicy prod-console"]["spec"]["ingress"][0]["from"] == FULL["console"]["from"]
    for kind in ("PodMonitor", "PrometheusRule"):
        assert made[f"{kind} prod"]["metadata"]["labels"]["release"] == "prometheus"
    rules = [rule for group in made["PrometheusRule prod"]["spec"]["groups"] for rule in group["rules"]]
    assert all(rule["annotations"]["runbook_url"].startswith("https://wiki.example/runbook#") for rule in rules)
    permits = tmp_path / "permits.json"
    permits.write_text(made["Secret prod-permits"]["stringData"]["permits.json"])
    read_permits(permits)


def test_a_console_without_peers_admits_no_pod(helm: str) -> None:
    policy = by_name(rendered(helm, {"console": {"enabled": True}}))["NetworkPolicy namesrv-console"]
    assert policy["spec"]["ingress"] == []


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"settings": {"log_level": "loud"}}, "log_level"),
        ({"settings": {"listen": "0.0.0.0:1"}}, "listen"),
        ({"tls": {"secret": "namesrv-tls"}}, "secret"),
        ({"permits": {"principals": {"ops": {"lookup": True}}}}, "lookup"),
        ({"antiAffinity": "none"}, "antiAffinity"),
        ({"monitoring": {"runbook_url": "runbook.md"}}, "runbook_url"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_value_is_refused_by_its_name(helm: str, values: dict[str, Any], name: str) -> None:
    with pytest.raises(CommandError, match=rf"\b{name}\b"):
        rendered(helm, values)


def test_the_schema_has_the_settings_with_their_types_and_limits() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    rules = ("type", "enum", "minimum", "maximum")
    for name, field in NamesrvSettings.model_json_schema()["properties"].items():
        if name not in SET_BY_THE_CHART | CUT_OFF:
            wanted = field["anyOf"][0] if "anyOf" in field else field
            assert schema.pop(name) == {rule: wanted[rule] for rule in rules if rule in wanted}
    assert schema == {}


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
