"""The files of deploy/ as the programs see them that they are for. Needs no container engine, only those programs."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.release.engine import REPOSITORY, CommandError, run
from deploy.release.images import cache_folder
from tests.support.programs.processes import BrokerAgentProcess, NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import identity, register, registration

DEPLOY = REPOSITORY / "deploy"
MONITORING = DEPLOY / "monitoring"
KUSTOMIZATIONS = (
    "base",
    "overlays/production",
    "overlays/production-tls",
    "overlays/rocketmq",
    "examples/broker",
    "examples/broker-tls",
    "examples/route-pipeline",
)
OLDEST_KUBERNETES = "1.28"
"""What docs/operating.md promises; the other version checked is the newest that the validator knows."""
OPERATOR_KINDS = {"PodMonitor", "PrometheusRule"}
"""Of the Prometheus operator, which Kubernetes has no schema of."""
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
"""The Go module that has the schemas of those."""
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


def test_no_kustomization_goes_unchecked() -> None:
    found = {path.parent: yaml.safe_load(path.read_text()) for path in DEPLOY.rglob("kustomization.yaml")}
    whole = {folder for folder, text in found.items() if text["kind"] == "Kustomization"}
    assert whole == {DEPLOY / "kubernetes" / name for name in KUSTOMIZATIONS}
    parts = {(folder / name).resolve() for folder in whole for name in found[folder].get("components", ())}
    assert parts == found.keys() - whole


@pytest.fixture(scope="module")
def operator_schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Schemas of the Prometheus operator's kinds, which allow no field that they do not name."""
    if shutil.which("go") is None:
        pytest.skip("go, which brings the Prometheus operator's schemas, is not installed")
    folder = tmp_path_factory.mktemp("operator")
    (folder / "go.mod").write_text("module schemas\n")
    downloaded = subprocess.run(
        ["go", "mod", "download", "-json", OPERATOR_MODULE], cwd=folder, check=False, capture_output=True, timeout=120
    )
    if downloaded.returncode != 0:
        pytest.skip(f"the Prometheus operator's schemas cannot be had: {downloaded.stderr.decode()}")
    schemas = {}
    for kind in OPERATOR_KINDS:
        crds = Path(json.loads(downloaded.stdout)["Dir"]) / "example/prometheus-operator-crd"
        crd = yaml.safe_load((crds / f"monitoring.coreos.com_{kind.lower()}s.yaml").read_text())
        (schema,) = (one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == "v1")
        schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
        schemas[kind] = folder / f"{kind}.json"
        schemas[kind].write_text(json.dumps(_closed(schema)))
    return schemas


def _closed(schema: Any) -> Any:
    """A schema as Kubernetes takes it with ``--validate=strict``: what it does not name is not allowed."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # Patterns are of Go's syntax, which the checker has not.
    closed = {key: _closed(value) for key, value in schema.items() if key != "pattern" or isinstance(value, dict)}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    return closed


def test_the_prometheus_operator_takes_what_kustomize_makes(
    tools: Path, tmp_path: Path, operator_schemas: dict[str, Path]
) -> None:
    text = run([str(tools / "kubectl"), "kustomize", str(DEPLOY / "kubernetes/overlays/production")])
    items = [item for item in yaml.safe_load_all(text) if item["kind"] in OPERATOR_KINDS]
    assert {item["kind"] for item in items} == OPERATOR_KINDS
    for item in items:
        _check(tools, operator_schemas[item["kind"]], item, tmp_path)
    item["spec"]["no-such-field"] = True
    with pytest.raises(CommandError, match="no-such-field"):
        _check(tools, operator_schemas[item["kind"]], item, tmp_path)


def _check(tools: Path, schema: Path, item: dict[str, Any], folder: Path) -> None:
    (folder / "item.json").write_text(json.dumps(item))
    run([str(tools / "check-jsonschema"), f"--schemafile={schema}", str(folder / "item.json")])


@pytest.mark.parametrize("profiles", [(), ("--profile", "monitoring")], ids=["plain", "monitoring"])
def test_what_compose_makes_of_the_file_keeps_to_the_specification_and_is_whole(
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


def test_systemd_takes_the_socket_unit_and_starts_the_name_server_for_it(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    service = (DEPLOY / "systemd/namesrv.service").read_text().replace("/opt/namesrv/bin/namesrv", "/bin/true")
    (tmp_path / "namesrv.service").write_text(service)
    (tmp_path / "namesrv.socket").write_text((DEPLOY / "systemd/namesrv.socket").read_text())
    units = [str(tmp_path / "namesrv.socket"), str(tmp_path / "namesrv.service")]
    assert run(["systemd-analyze", "--man=no", "verify", "--recursive-errors=no", *units]) == ""


@contextmanager
def prometheus_of(
    promtool: str, folder: Path, targets: dict[str, list[str]], rules: Path = MONITORING / "alerts.yaml"
) -> Iterator[str]:
    """A Prometheus that scrapes the targets of each job every second, with the alert rules. Yields its URL."""
    program = Path(promtool).with_name("prometheus")
    if not program.exists():
        pytest.skip("there is no prometheus beside promtool")
    configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(rules)]
    for scrape in configuration["scrape_configs"]:
        scrape["static_configs"] = [{"targets": targets[scrape["job_name"]], "labels": {"fleet": "main"}}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                str(program),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={listen}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: _answers(f"http://{listen}/-/ready"))
        yield f"http://{listen}"
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _ask(url: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
        return json.load(answer)["data"]


ABOUT_THE_FLEET = frozenset({"NamesrvFewLeft", "NamesrvDown", "NamesrvDisagree"})
CERTIFICATE_END = "_certificate_not_after_seconds"
"""What only a program with TLS has; tests/integration/security/test_tls.py sees it there."""


@pytest.mark.timeout(180)
def test_each_panel_shows_something_of_a_name_server_and_an_agent(promtool: str, tmp_path: Path) -> None:
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
        BrokerAgentProcess(str(namesrv.endpoint), "--metrics-listen", "127.0.0.1:0") as agent,
        prometheus_of(
            promtool,
            tmp_path,
            {
                "namesrv": [namesrv.wait_for("namesrv_started")["metrics"]],
                "broker-agent": [agent.wait_for("agent_started")["metrics"]],
            },
        ) as url,
    ):

        def unseen() -> list[str]:
            channel = client.open_channel()
            other = registration(broker=identity(name="broker-b", addr="127.0.0.1:10921"), channel_id=channel.id)
            client.registration.RegisterBroker(other, timeout=client.TIMEOUT)
            assert client.route() is not None
            assert client.route("Nothing") is None
            assert of_rocketmq.ask(105, {"topic": "Nothing"}).code == 17
            channel.close()
            return [expression for expression in expressions - of_certificates if not series(expression)]

        def series(expression: str) -> list[Any]:
            query = expression.replace("$__rate_interval", "30s").replace("$instance", ".*")
            found = _ask(url, "query", query=query)["result"]
            assert isinstance(found, list)
            return found

        eventually(unseen, lambda left: not left, within_seconds=90)
        rules = [rule for group in _ask(url, "rules")["groups"] for rule in group["rules"]]
        assert {rule["name"]: rule["health"] for rule in rules if rule["health"] == "err"} == {}
        assert len(rules) > 10


@pytest.mark.timeout(180)
def test_name_servers_with_as_many_brokers_that_are_others_raise_the_alert_and_a_killed_one_its_own(
    promtool: str, tmp_path: Path
) -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("for", None)  # what lasts for minutes in a fleet is told at once here
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    metrics = ("--metrics-listen", "127.0.0.1:0")
    with NamesrvProcess(*metrics) as first, NamesrvProcess(*metrics) as second:
        listen = [namesrv.wait_for("namesrv_started")["metrics"] for namesrv in (first, second)]
        with prometheus_of(promtool, tmp_path, {"namesrv": listen, "broker-agent": []}, tmp_path / "rules.yaml") as url:

            def fired() -> set[tuple[str, str]]:
                alerts = [alert["labels"] for alert in _ask(url, "alerts")["alerts"]]
                return {(labels["alertname"], labels.get("instance", "")) for labels in alerts}

            eventually(lambda: _ask(url, "query", query="sum(namesrv_warm) == 2")["result"])
            # NamesrvFewLeft, before both are scraped. A busy machine may raise one about the event loop, which lasts.
            eventually(fired, lambda alerts: {name for name, _ in alerts}.isdisjoint(ABOUT_THE_FLEET))
            for namesrv, name in ((first, "broker-a"), (second, "broker-b")):
                with namesrv.connect() as client:
                    register(client, "TopicTest", name=name)
            # Samples are taken at full minutes.
            eventually(fired, lambda alerts: ("NamesrvDisagree", "") in alerts, within_seconds=90)
            second.kill()
            eventually(fired, lambda alerts: {("NamesrvDown", listen[1]), ("NamesrvFewLeft", "")} <= alerts)
