"""Who reads a test finds all of it in its module, in helpers beside it and in ``support``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def imported(module: Path) -> Iterator[str]:
    """The names of all that a module imports: of modules, and of what may be a module in a package."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_a_module_of_tests() -> None:
    modules = {
        ".".join(path.relative_to(TESTS.parent).with_suffix("").parts): path for path in sorted(TESTS.rglob("*.py"))
    }
    tests = {name for name in modules if name.rpartition(".")[2].startswith("test_")}
    assert len(tests) > 200
    found = {
        (name, of)
        for name, path in modules.items()
        for of in imported(path)
        if of in tests or of.rpartition(".")[0] in tests
    }
    assert found == set()
