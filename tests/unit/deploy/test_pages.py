"""The pages about operating: what they name is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from broker_agent.settings import AgentSettings
from namesrv.cli import app as namesrv_app
from namesrv.settings import NamesrvSettings
from nsctl.cli import app as nsctl_app
from route_pipeline.commands import app as pipeline_app
from tests.unit.deploy.files import DEPLOY, ROOT

DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
PAGES = [
    ROOT / "docs/install.md",
    ROOT / "docs/operating.md",
    ROOT / "docs/metrics.md",
    DEPLOY / "README.md",
    ROOT / "CHANGELOG.md",
]
PAGES += [ROOT / "docs/install.md", ROOT / "docs/runbook.md", ROOT / "docs/architecture.md", *DECISIONS]
OTHERS_FLAGS = {"build", "build-arg", "cap-drop", "format", "now", "profile", "read-only", "secret", "security-opt"}
OTHERS_FLAGS |= {
    "dest",
    "entrypoint",
    "from-file",
    "help",
    "no-deps",
    "no-index",
    "find-links",
    "py-files",
    "tmpfs",
    "faults",
    "only",
    "quick",
    "reference",
    "rows",
    "tables",
}
"""Flags of pip, docker, podman, kubectl, systemctl, chown, Spark, our benchmarks, and the one that everything has."""
GONE = {"audit-file-max-bytes", "workers", "until-millis"}
"""Flags that were there. Pages say what to do instead."""


def options_of(command: Any) -> set[str]:
    """All flags of a command and the commands below it, without the two hyphens."""
    flags = {flag.removeprefix("--") for parameter in command.params for flag in parameter.opts}
    return flags.union(*map(options_of, commands_of(command).values()))


def commands_of(command: Any) -> dict[str, Any]:
    """The commands below a command."""
    return dict(getattr(command, "commands", {}))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_and_commands_that_a_page_names_are_there(page: Path) -> None:
    code = "\n".join(map("".join, re.findall(r"`([^`]+)`|^    (.+)$", page.read_text(), re.MULTILINE)))
    nsctl = typer.main.get_command(nsctl_app)
    settings = {*NamesrvSettings.model_fields, *AgentSettings.model_fields}
    known = {name.replace("_", "-") for name in settings} | options_of(nsctl) | OTHERS_FLAGS | GONE
    known |= options_of(typer.main.get_command(namesrv_app)) | options_of(typer.main.get_command(pipeline_app))
    assert set(re.findall(r"(?<!\S)--([a-z][a-z-]+)", code)) - known == set()
    assert set(re.findall(r"nsctl ([a-z][a-z-]+)", code)) - set(commands_of(nsctl)) == set()


@pytest.mark.parametrize("page", [ROOT / "docs/architecture.md", *DECISIONS], ids=lambda page: page.name)
def test_files_that_a_page_names_by_their_path_are_there(page: Path) -> None:
    folders = "namesrv|broker_agent|groundwork|route_client|route_pipeline|nsctl|engine|support|tools|tests|bench"
    paths = re.findall(rf"\b(?:{folders})/[\w/]+\.\w+", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_tests_that_a_page_names_are_there() -> None:
    sources: dict[str, list[Path]] = {}
    for file in (ROOT / "tests").rglob("test_*.py"):
        sources.setdefault(file.name, []).append(file)
    missing = []
    for page in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")):
        for folder, name, test in re.findall(r"((?:\w+/)*)(test_\w+\.py)(?:::(\w+))?", page.read_text()):
            named = [file for file in sources.get(name, ()) if folder.rstrip("/") in str(file.parent)]
            if not any(not test or f"def {test}(" in file.read_text() for file in named):
                missing.append((page.name, f"{folder}{name}::{test}"))
    assert missing == []


def test_the_index_of_decisions_has_each_page_once() -> None:
    index = ROOT / "docs/decisions/README.md"
    listed = re.findall(r"^\| \[[^]]+\]\(([\w-]+\.md)\)", index.read_text(), re.MULTILINE)
    assert sorted(listed) == [page.name for page in DECISIONS if page != index]


def test_architecture_names_each_package_and_nothing_else() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    tables = re.findall(
        r"^\| (?:package|modules) of `(\w+)/` \|[^\n]*\n\|---\|---\|\n((?:\|.+\n)+)", page, re.MULTILINE
    )
    assert [package for package, _ in tables] == ["namesrv", "broker_agent"]
    for package, rows in tables:
        names = re.findall(r"`([\w/]+)`", "".join(re.findall(r"^\|[^|]+\|", rows, re.MULTILINE)))
        named = {ROOT / package / name.rstrip("/") for name in names}
        assert [str(path) for path in named if not (path.is_dir() or path.with_suffix(".py").is_file())] == []
        folders = {path.parent for path in (ROOT / package).glob("*/__init__.py")}
        assert folders - named == set()


def test_architecture_names_each_folder_at_the_top() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    tree = re.findall(r"^\| `(\w+)/` \|", page.partition("\n## The tree\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert set(tree) == tracked()


def tracked() -> set[str]:
    """Folders at the top that belong to the project."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.partition("/")[0] for line in names.splitlines() if "/" in line and not line.startswith(".")}
