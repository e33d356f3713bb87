"""Reads the files of deploy/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from broker_agent.settings import AgentSettings
from namesrv.settings import NamesrvSettings
from namesrv_common.process.settings_cli import ProgramSettings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
PROGRAMS: dict[str, type[ProgramSettings]] = {"namesrv": NamesrvSettings, "broker-agent": AgentSettings}


def documents(path: Path) -> list[Any]:
    """All documents of a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def document(path: Path) -> dict[str, Any]:
    """The only document of a YAML file, a mapping."""
    (found,) = documents(path)
    assert isinstance(found, dict)
    return found


def kubernetes_objects(*folders: Path) -> list[dict[str, Any]]:
    """The objects that the files of the folders declare, patches and kustomizations not among them."""
    paths = (path for folder in folders for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml")
    return [found for path in paths for found in documents(path)]


def pod_templates(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Templates of pods: of StatefulSets and of CronJobs."""
    for item in objects:
        if item["kind"] == "StatefulSet":
            yield item["spec"]["template"]
        elif item["kind"] == "CronJob":
            yield item["spec"]["jobTemplate"]["spec"]["template"]


def image_environment(program: str) -> dict[str, str]:
    """Returns the variables that the image of a program sets."""
    text = (DEPLOY / program.replace("-", "_") / "Dockerfile").read_text()
    return dict(re.findall(r"\b((?:NAMESRV|BROKER_AGENT)_[A-Z_]+)=(\S+)", text))


def load(program: str, arguments: list[str], environment: dict[str, str], file: Path | None = None) -> Any:
    """The settings that a program would come to; fails as it would."""
    settings = PROGRAMS[program]
    prefix = str(settings.model_config["env_prefix"])
    given: dict[str, Any] = {
        name.removeprefix(prefix).lower(): value for name, value in environment.items() if name.startswith(prefix)
    }
    for argument in arguments:
        assert argument.startswith("--"), argument
        key, _, value = argument.removeprefix("--").partition("=")
        given[key.replace("-", "_")] = value or True
    unknown = given.keys() - settings.model_fields.keys()
    assert not unknown, f"{program} has no settings {unknown}"
    return settings.load(file, given)


def of_container(found: dict[str, Any]) -> Any:
    """The settings of the program of a container."""
    program = found["image"].rpartition("/")[2].split(":")[0]
    environment = {item["name"]: item.get("value", "1") for item in found.get("env", ())}
    verb, *arguments = [argument.replace("$(POD_IP)", "10.0.0.1") for argument in found["args"]]
    assert verb == "serve"
    return load(program, arguments, {**image_environment(program), **environment})
