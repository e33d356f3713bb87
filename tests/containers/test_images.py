from __future__ import annotations

import json
from pathlib import Path

import pytest

from release.engine import REPOSITORY, Engine, run
from release.images import IMAGES, image_sizes

pytestmark = pytest.mark.timeout(600)

MAX_ADDED_BYTES = 110_000_000
"""What an image may add to its base. pyspark alone would be several times that."""
PYTHON = {"namesrv": "/opt/namesrv/bin/python", "broker-agent": "/opt/broker-agent/bin/python"}
NOT_NEEDED = {
    "namesrv": ("pyspark", "pyarrow", "pip", "grpc_tools", "broker_agent", "route_pipeline"),
    "broker-agent": ("pyspark", "pyarrow", "pip", "grpc_tools", "namesrv_engine", "grpc_reflection", "uvloop"),
}
NEEDED = {
    "namesrv": ("grpc_reflection", "namesrv_engine", "starlette", "opentelemetry.exporter.otlp.proto.grpc"),
    "broker-agent": ("tenacity", "grpc", "opentelemetry.exporter.otlp.proto.grpc"),
}
FIND = "import importlib.util, json, sys; print(json.dumps([m for m in sys.argv[1:] if importlib.util.find_spec(m)]))"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_the_modules_that_it_needs_and_no_others(engine: Engine, image: str) -> None:
    asking = ("run", "--rm", "--network=none", f"--entrypoint={PYTHON[image]}", f"localhost/{image}", "-c", FIND)
    assert json.loads(engine.podman(*asking, *NOT_NEEDED[image], *NEEDED[image])) == [*NEEDED[image]]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_how_to_run_check_and_stop_it(engine: Engine, image: str) -> None:
    config = json.loads(engine.podman("image", "inspect", f"localhost/{image}"))[0]
    assert config["Config"]["User"] == "10001:10001"
    assert config["Config"]["Entrypoint"] == [image]
    assert config["Config"]["StopSignal"] == "SIGTERM"
    check = config["HealthcheckConfig" if "HealthcheckConfig" in config else "Healthcheck"]
    assert check["Test"] == ["CMD", image, "healthcheck"]
    assert config["Labels"]["org.opencontainers.image.title"] == image
    assert config["Labels"]["org.opencontainers.image.version"] not in ("", "0")


@pytest.mark.parametrize("image", IMAGES)
def test_nothing_of_the_build_stays_in_an_image(engine: Engine, image: str) -> None:
    folders = ["/", "/etc", "/mnt", "/opt"]
    listing = engine.podman("run", "--rm", "--network=none", "--entrypoint=ls", f"localhost/{image}", *folders)
    assert listing.split("/opt:")[1].split() == [image]
    assert not {"src", "dist", "pip.conf"} & set(listing.split())


@pytest.mark.parametrize("image", IMAGES)
def test_hadolint_finds_nothing_in_the_dockerfile(tools: Path, image: str) -> None:
    run([str(tools / "hadolint"), str(REPOSITORY / IMAGES[image])])


def test_an_image_adds_little_to_its_base(engine: Engine) -> None:
    sizes = image_sizes(engine)
    base = sizes.pop("python:3.11-slim")
    assert {image: size for image, size in sizes.items() if size - base > MAX_ADDED_BYTES} == {}
