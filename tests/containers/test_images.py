from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.release.engine import REPOSITORY, CommandError, Engine, run
from deploy.release.images import IMAGES, image_sizes
from tests.containers.fleet import AGENTS, NAMESRVS, Fleet

pytestmark = pytest.mark.timeout(600)

MAX_ADDED_BYTES = 110_000_000
"""What an image may add to its base. pyspark alone would be several times that."""
PYTHON = {"namesrv": "/opt/namesrv/bin/python", "broker-agent": "/opt/broker-agent/bin/python"}
NOT_NEEDED = {
    "namesrv": ("pyspark", "pyarrow", "pip", "grpc_tools", "broker_agent", "route_pipeline"),
    "broker-agent": (
        "pyspark",
        "pyarrow",
        "pip",
        "grpc_tools",
        "namesrv_engine",
        "grpc_reflection",
        "uvloop",
    ),
}
NEEDED = {
    "namesrv": ("grpc_reflection", "namesrv_engine", "starlette", "opentelemetry.exporter.otlp.proto.grpc"),
    "broker-agent": ("tenacity", "grpc", "opentelemetry.exporter.otlp.proto.grpc"),
}
FIND = "import importlib.util, json, sys; print(json.dumps([m for m in sys.argv[1:] if importlib.util.find_spec(m)]))"


def each(modules: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Each module with its image."""
    return [(image, module) for image, names in modules.items() for module in names]


@pytest.fixture(scope="module")
def found(engine: Engine) -> dict[str, list[str]]:
    """Which of these modules each image has; a container of each is asked once."""
    return {
        image: json.loads(
            engine.podman(
                *("run", "--rm", "--network=none", f"--entrypoint={PYTHON[image]}", f"localhost/{image}", "-c", FIND),
                *NOT_NEEDED[image],
                *NEEDED[image],
            )
        )
        for image in IMAGES
    }


@pytest.mark.parametrize(("image", "module"), each(NOT_NEEDED))
def test_an_image_lacks_what_it_does_not_need(found: dict[str, list[str]], image: str, module: str) -> None:
    assert module not in found[image]


@pytest.mark.parametrize(("image", "module"), each(NEEDED))
def test_an_image_has_what_it_needs(found: dict[str, list[str]], image: str, module: str) -> None:
    assert module in found[image]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_how_to_run_check_and_stop_it(engine: Engine, image: str) -> None:
    config = json.loads(engine.podman("image", "inspect", f"localhost/{image}"))[0]
    assert config["Config"]["User"] == "10001:10001"
    assert config["Config"]["Entrypoint"] == [image]
    assert config["Config"]["StopSignal"] == "SIGTERM"
    assert config["HealthcheckConfig" if "HealthcheckConfig" in config else "Healthcheck"]["Test"] == [
        "CMD",
        image,
        "healthcheck",
    ]
    assert config["Labels"]["org.opencontainers.image.title"] == image
    assert config["Labels"]["org.opencontainers.image.version"] not in ("", "0")


def test_a_name_server_runs_on_native_unless_told_otherwise(engine: Engine) -> None:
    settings = engine.podman(
        "run", "--rm", "--network=none", "localhost/namesrv", "serve", "--allow-insecure", "--print-config"
    )
    assert 'engine = "native"' in settings.splitlines()


def test_the_console_is_in_the_name_servers_image(engine: Engine) -> None:
    run_console = ("run", "--rm", "--network=none", "--read-only", "--entrypoint=nsctl", "localhost/namesrv", "console")
    assert "--behind-proxy" in engine.podman(*run_console, "--help")
    with pytest.raises(CommandError, match=r"exit code 2(.|\n)*behind-proxy"):
        engine.podman(*run_console, "--namesrv=10.0.0.1:9876", "--listen=0.0.0.0:9880")


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_of_the_build_stays_in_an_image(engine: Engine, image: str) -> None:
    folders = ["/", "/etc", "/mnt", "/opt"]
    listing = engine.podman("run", "--rm", "--network=none", "--entrypoint=ls", f"localhost/{image}", *folders)
    assert listing.split("/opt:")[1].split() == [image]
    assert not {"src", "dist", "pip.conf"} & set(listing.split())


@pytest.mark.parametrize("image", IMAGES)
def test_the_health_check_fails_where_nothing_serves(engine: Engine, image: str) -> None:
    with pytest.raises(CommandError, match="exit code 1:"):
        engine.podman("run", "--rm", "--network=none", f"localhost/{image}", "healthcheck")


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing_in_the_dockerfile(tools: Path, image: str) -> None:
    run([str(tools / "hadolint"), str(REPOSITORY / IMAGES[image])])


def test_an_image_adds_little_to_its_base(engine: Engine) -> None:
    sizes = image_sizes(engine)
    base = sizes.pop("python:3.11-slim")
    assert {image: size for image, size in sizes.items() if size - base > MAX_ADDED_BYTES} == {}


def test_a_name_server_with_default_settings_refuses_to_listen_in_plain_text(engine: Engine) -> None:
    with pytest.raises(CommandError, match=r"exit code 2(.|\n)*allow-insecure"):
        engine.podman("run", "--rm", "--network=none", "localhost/namesrv")


@pytest.mark.parametrize("role", [*NAMESRVS, *AGENTS])
def test_a_container_runs_as_a_user_without_privileges_on_a_read_only_root(fleet: Fleet, role: str) -> None:
    assert fleet.execute(role, "id", "-u") == "10001"
    status = fleet.execute(role, "cat", "/proc/1/status")
    values = dict(line.split(":\t", 1) for line in status.splitlines())
    assert values["Uid"].split() == ["10001"] * 4
    assert int(values["CapEff"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    for folder in ("/", "/opt", "/etc", "/var/tmp", "/run"):
        with pytest.raises(CommandError, match=r"Read-only file system|Permission denied"):
            fleet.execute(role, "touch", f"{folder}/written")
    mounts = [line.split() for line in fleet.execute(role, "cat", "/proc/1/mounts").splitlines()]
    assert next(options for _, path, _, options, *_ in mounts if path == "/").split(",")[0] == "ro"


@pytest.mark.parametrize("role", NAMESRVS)
def test_nsctl_in_the_container_finds_its_own_name_server(fleet: Fleet, role: str) -> None:
    (status,) = json.loads(fleet.execute(role, "nsctl", "status", "-o", "json"))
    assert (status["header"]["namesrv_name"], status["endpoint"]) == (role, "127.0.0.1:9878")
    # A fleet that has just begun is warming up: a warning, and exit code 5.
    findings = json.loads(fleet.execute(role, "sh", "-c", "nsctl doctor -o json || test $? = 5"))
    assert {finding["code"] for finding in findings} <= {"WARMING"}


@pytest.mark.parametrize("role", NAMESRVS)
def test_a_name_server_may_write_into_its_volume(fleet: Fleet, role: str) -> None:
    fleet.execute(role, "touch", "/var/lib/namesrv/written")
    fleet.execute(role, "rm", "/var/lib/namesrv/written")
