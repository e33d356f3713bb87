"""Reads the files of deploy/, strictly."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, where PyYAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys given twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


def documents(path: Path) -> list[Any]:
    """All documents of a YAML file."""
    return [found for found in yaml.load_all(path.read_text(), StrictLoader) if found]


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


def container(folder: str, name: str, component: str | None = None) -> dict[str, Any]:
    """A container of the only StatefulSet of a folder, as the patch of a component makes it."""
    (found,) = [item for item in kubernetes_objects(KUBERNETES / folder) if item["kind"] == "StatefulSet"]
    if component is not None:
        (operations,) = documents(KUBERNETES / f"components/{component}/stateful-set.patch.yaml")
        found = patched(found, operations)
    (result,) = [one for one in found["spec"]["template"]["spec"]["containers"] if one["name"] == name]
    assert isinstance(result, dict)
    return result


def patched(target: Any, operations: list[dict[str, Any]]) -> Any:
    """A copy of a document with a JSON patch (RFC 6902) applied: its operations test, add, replace and remove."""
    result = copy.deepcopy(target)
    for operation in operations:
        *parents, last = operation["path"].removeprefix("/").split("/")
        holder = result
        for part in parents:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        key: Any = last if isinstance(holder, dict) or last == "-" else int(last)
        if operation["op"] == "test":
            assert holder[key] == operation["value"], operation
        elif operation["op"] == "remove":
            del holder[key]
        elif key == "-":
            holder.append(operation["value"])
        else:
            assert operation["op"] == "add" or holder[key] is not None
            holder[key] = operation["value"]
    return result


def image_environment(program: str) -> dict[str, str]:
    """Returns the variables that the image of a program sets."""
    text = (DEPLOY / program.replace("-", "_") / "Dockerfile").read_text()
    return dict(re.findall(r"\b((?:NAMESRV|BROKER_AGENT)_[A-Z_]+)=(\S+)", text))
