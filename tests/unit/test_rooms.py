"""The house stays in order: a newcomer looks through a folder at a glance, and reads a module in one sitting."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from support.pages import ROOT

PACKAGES = ("groundwork", "namesrv", "broker_agent", "route_client", "route_pipeline", "nsctl", "namesrv_console")
FOLDERS = (*PACKAGES, "pyspark_namesrv", "support", "tools", "demo", "bench", "examples", "tests", "engine/src")
MOST_MODULES = 15
"""Of a folder, beside its ``__init__.py`` and its rooms."""
MOST_LINES = 400


def modules() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*") if path.suffix in {".py", ".rs"}]
    ours = [path.relative_to(ROOT) for path in found]
    ours = [path for path in ours if not {"node_modules", "target"} & set(path.parts)]
    assert len(ours) > 1_000
    return ours


def test_no_folder_has_more_modules_than_one_looks_through() -> None:
    counts = Counter(path.parent for path in modules() if path.stem not in {"__init__", "conftest", "mod"})
    assert {str(folder): count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_no_module_is_longer_than_one_reads() -> None:
    lengths = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {str(path): length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_each_package_of_the_product_says_what_lives_there_and_where_to_begin() -> None:
    packages = [path for path in modules() if path.name == "__init__.py" and path.parts[0] in PACKAGES]
    texts = {path: ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) for path in packages}
    assert [str(path) for path, text in texts.items() if "Begin reading in" not in " ".join(str(text).split())] == []
