"""The manifests for Kubernetes; what Kubernetes' own schemas say is checked in tests/containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.files import (
    DEPLOY,
    KUBERNETES,
    ROOT,
    document,
    documents,
    kubernetes_objects,
    patched,
    pod_templates,
    rocketmq_container,
    the,
    yaml_files,
)

BASE = KUBERNETES / "base"
BROKER = KUBERNETES / "examples/broker"
PIPELINE = KUBERNETES / "examples/route-pipeline"
KUSTOMIZATIONS = sorted(DEPLOY.rglob("kustomization.yaml"))
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
IMAGE_USER = 10001
"""uid and gid of both images."""


@pytest.fixture
def base() -> list[dict[str, Any]]:
    return kubernetes_objects(BASE)


@pytest.fixture
def server(base: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = the("StatefulSet", "namesrv", base)["spec"]
    return found


@pytest.fixture
def container(server: dict[str, Any]) -> dict[str, Any]:
    (found,) = server["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", yaml_files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_yaml_file_parses_and_gives_no_key_twice(path: Path) -> None:
    assert documents(path)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(DEPLOY)))
def test_a_kustomization_names_every_file_beside_it_and_only_what_is_there(path: Path) -> None:
    kustomization = document(path)
    named = [*kustomization.get("resources", []), *kustomization.get("components", [])]
    named += [patch["path"] for patch in kustomization.get("patches", [])]
    named += [file for generator in kustomization.get("configMapGenerator", []) for file in generator["files"]]
    assert [name for name in named if not (path.parent / name).exists()] == []
    if path.parent.is_relative_to(KUBERNETES):
        assert {file.name for file in path.parent.iterdir()} == {name for name in named if "/" not in name} | {
            path.name
        }


def test_everything_is_in_one_namespace_in_manifests_and_commands(base: list[dict[str, Any]]) -> None:
    (namespace,) = [item["metadata"]["name"] for item in base if item["kind"] == "Namespace"]
    for path in KUSTOMIZATIONS:
        kustomization = document(path)
        adds = any(not name.startswith("../") for name in kustomization.get("resources", ()))
        if kustomization["kind"] == "Kustomization" and adds:
            assert kustomization["namespace"] == namespace, path
    for path in DEPLOY.rglob("*.yaml"):
        assert set(re.findall(r"\b([\w-]+)\.svc\.cluster\.local", path.read_text())) <= {namespace}, path
    for page in (*(ROOT / "docs").rglob("*.md"), DEPLOY / "README.md", ROOT / "README.md"):
        for command in re.findall(r"kubectl (?:-n \S+ )?(?:exec|create|describe|logs|get|rollout)\b", page.read_text()):
            assert f" -n {namespace} " in command, (page, command)


def test_agents_find_a_name_server_that_is_not_ready_and_clients_do_not(base: list[dict[str, Any]]) -> None:
    agents, clients = the("Service", "namesrv-agents", base)["spec"], the("Service", "namesrv", base)["spec"]
    assert agents["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in clients
    assert (agents["clusterIP"], clients["clusterIP"]) == ("None", "None"), "gRPC needs all addresses to fail over"
    assert the("StatefulSet", "namesrv", base)["spec"]["serviceName"] == "namesrv-agents"


def test_probes_ask_the_whole_server_whether_it_lives_and_the_route_service_whether_it_is_ready(
    container: dict[str, Any],
) -> None:
    assert container["livenessProbe"]["grpc"] == {"port": 9878}
    assert container["startupProbe"]["grpc"] == {"port": 9878}
    assert container["readinessProbe"]["grpc"] == {"port": 9878, "service": "namesrv_api.v1.RouteService"}
    patience = {name: container[name]["periodSeconds"] * container[name]["failureThreshold"] for name in PROBES}
    assert patience["readinessProbe"] < patience["livenessProbe"], "it is taken out of service before it is restarted"


def test_selectors_select_the_pods_and_ports_are_those_of_the_container(
    base: list[dict[str, Any]], server: dict[str, Any], container: dict[str, Any]
) -> None:
    labels = server["template"]["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": 9878, "metrics": 5557}
    selectors = [server["selector"]["matchLabels"]]
    for item in base:
        if item["kind"] == "Service":
            selectors.append(item["spec"]["selector"])
            assert [port["targetPort"] for port in item["spec"]["ports"]] == ["grpc"]
    policy = the("NetworkPolicy", "namesrv", base)["spec"]
    selectors.append(policy["podSelector"]["matchLabels"])
    selectors.append(the("PodDisruptionBudget", "namesrv", base)["spec"]["selector"]["matchLabels"])
    assert len(selectors) == 5
    assert [selector for selector in selectors if not selector.items() <= labels] == []
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports.keys()


def test_the_component_for_rocketmq_opens_its_port_to_those_who_reach_grpc(base: list[dict[str, Any]]) -> None:
    component = KUBERNETES / "components/rocketmq"
    (services,) = documents(component / "services.patch.yaml")
    (policy,) = documents(component / "network-policy.patch.yaml")
    for name in ("namesrv", "namesrv-agents"):
        ports = patched(the("Service", name, base), services)["spec"]["ports"]
        assert [(port["port"], port["targetPort"]) for port in ports] == [(9878, "grpc"), (9876, "rocketmq")]
    ingress = patched(the("NetworkPolicy", "namesrv", base), policy)["spec"]["ingress"]
    assert [port["port"] for port in ingress[0]["ports"]] == ["grpc", "rocketmq"]
    assert {"name": "rocketmq", "containerPort": 9876} in rocketmq_container()["ports"]


def test_the_data_directory_is_a_claim_of_the_pods_own(server: dict[str, Any], container: dict[str, Any]) -> None:
    (claim,) = server["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"--data-dir={mounts[claim['metadata']['name']]}" in container["args"]
    assert server["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_one_name_server_at_a_time_goes_and_none_shares_a_node_in_production(
    base: list[dict[str, Any]], server: dict[str, Any]
) -> None:
    assert the("PodDisruptionBudget", "namesrv", base)["spec"]["maxUnavailable"] == 1
    assert server["replicas"] == 3
    assert server["updateStrategy"] == {"type": "RollingUpdate"}
    patch = document(KUBERNETES / "overlays/production/stateful-set.yaml")["spec"]["template"]["spec"]
    for affinity, way in (
        (server["template"]["spec"]["affinity"], "preferredDuringSchedulingIgnoredDuringExecution"),
        (patch["affinity"], "requiredDuringSchedulingIgnoredDuringExecution"),
    ):
        assert way in affinity["podAntiAffinity"]


def test_a_name_server_opens_no_connection_and_only_labelled_pods_reach_it(base: list[dict[str, Any]]) -> None:
    policy = the("NetworkPolicy", "namesrv", base)["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    (access,) = [rule for rule in policy["ingress"] if rule["ports"][0]["port"] == "grpc"]
    (peer,) = access["from"]
    for template in pod_templates(kubernetes_objects(BROKER, PIPELINE)):
        assert peer["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("template", list(pod_templates(kubernetes_objects(BASE, BROKER, PIPELINE))))
def test_pods_have_no_rights_that_they_do_not_need(template: dict[str, Any]) -> None:
    pod = template["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert "memory" in container["resources"]["limits"]
        if container["name"] != "broker":  # whose image is another project's
            assert context["readOnlyRootFilesystem"] is True
            assert context.get("runAsUser", pod["securityContext"].get("runAsUser")) == IMAGE_USER
        volumes = {volume["name"] for volume in pod["volumes"]} | {"data", "store"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_a_broker_goes_on_serving_while_its_agent_unregisters_it() -> None:
    pod = the("StatefulSet", "broker-a", kubernetes_objects(BROKER))["spec"]["template"]["spec"]
    broker, agent = pod["containers"]
    command, seconds = broker["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert 30 < int(seconds) < pod["terminationGracePeriodSeconds"], "clients that poll do so every 30 s"
    assert "lifecycle" not in agent, "it ends at once"
    assert "--on-stop=unregister" in agent["args"]


def test_the_next_broker_goes_when_a_name_server_has_this_one() -> None:
    pod = the("StatefulSet", "broker-a", kubernetes_objects(BROKER))["spec"]["template"]["spec"]
    (agent,) = [container for container in pod["containers"] if container["name"] == "broker-agent"]
    assert agent["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "agent-metrics"}
    assert agent["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "agent-metrics"}


def test_the_pipeline_reads_each_name_server_by_its_own_name_and_runs_once_at_a_time(server: dict[str, Any]) -> None:
    job = the("CronJob", "route-pipeline-ingest", kubernetes_objects(PIPELINE))["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    (container,) = job["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    named = [argument.removeprefix("--namesrv=") for argument in container["args"] if argument.startswith("--namesrv=")]
    service = f"{server['serviceName']}.namesrv.svc.cluster.local:9878"
    assert named == [f"namesrv-{number}.{service}" for number in range(server["replicas"])]
