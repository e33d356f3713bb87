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
MONITORING = DEPLOY / "monitoring"


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


def yaml_files() -> list[Path]:
    """All YAML files of deploy/."""
    return sorted(path for kind in ("*.yaml", "*.yml") for path in DEPLOY.rglob(kind))


def kubernetes_objects(*folders: Path) -> list[dict[str, Any]]:
    """The objects that the files of the folders declare, patches and kustomizations not among them."""
    return [
        found
        for folder in folders
        for path in sorted(folder.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for found in documents(path)
    ]


def the(kind: str, name: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The object of a kind and name."""
    (found,) = [item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name]
    return found


def pod_templates(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Templates of pods: of StatefulSets and of CronJobs."""
    for item in objects:
        if item["kind"] == "StatefulSet":
            yield item["spec"]["template"]
        elif item["kind"] == "CronJob":
            yield item["spec"]["jobTemplate"]["spec"]["template"]


def metric_names(expression: str) -> set[str]:
    """Names of metrics in a PromQL expression, of this project and of the process."""
    without_labels = re.sub(r'\{[^}]*\}|"[^"]*"|\b(?:by|without|on|ignoring)\s*\([^)]*\)|\[[^\]]*\]', " ", expression)
    return set(re.findall(r"\b(?:namesrv|broker_agent|grpc|process|python)_\w+", without_labels))


def headings(page: Path) -> dict[str, str]:
    """Text below each heading of a Markdown page, by the heading's anchor."""
    parts = re.split(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"): text.strip()
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


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


def rocketmq_container() -> dict[str, Any]:
    """Returns the name server's container of the overlay ``rocketmq``."""
    server = the("StatefulSet", "namesrv", kubernetes_objects(KUBERNETES / "base"))
    (component,) = documents(KUBERNETES / "components/rocketmq/stateful-set.patch.yaml")
    (container,) = patched(server, component)["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container
