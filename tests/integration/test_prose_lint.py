"""The prose lint: what it finds, what of that fails, and links that are broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools import lint_prose
from docs.tools.lint_prose import Finding

TEXTS = {
    "bad.md": "It takes more time beside the naive server.\n",
    "good.md": "It takes more time than the naive server.\n",
    "code.py": 'MOST = 3  # whoever asks\n"""Mended."""\ntext = "whoever"\n',
}


def test_findings_are_told_with_line_and_rule_and_in_code_of_comments_alone(tmp_path: Path) -> None:
    vale = lint_prose.find_vale("--present")
    if vale is None:
        pytest.skip("Vale is missing: run docs/tools/install_vale.sh")
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = sorted((one.path, one.line, one.rule) for one in lint_prose.lint(vale, TEXTS, tmp_path))
    in_code = [("code.py", 1, "Plain.Subjects"), ("code.py", 2, "Plain.SoftWords")]
    assert found == [("bad.md", 1, "Plain.Beside"), *in_code]


def test_links_and_tests_that_do_not_exist_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `code` heading\n[a](page.md#a-code-heading) [b](https://a.example) `[c](none.md)` `test_prose_lint.py`\n"
        "[d](none.md) [e](#no-heading) `unit/test_none.py`\n"
    )
    broken = [re.findall(r"'(.*)'|test (.*)::", line) for line in lint_prose.broken_links(page)]
    assert broken == [[("none.md", "")], [("#no-heading", "")], [("", "unit/test_none.py")]]


def test_a_finding_fails_by_its_severity_on_pages_and_its_rule_in_code() -> None:
    one = Finding("namesrv/app/access.py", 1, "Plain.Beside", "suggestion", "")
    assert lint_prose.fails(one)
    assert lint_prose.fails(one._replace(path="tests/unit/test_quotas.py"))
    assert not lint_prose.fails(one._replace(path="tests/unit/test_quotas.py", rule="Plain.Persons"))
    assert not lint_prose.fails(one._replace(path="README.md"))
    assert lint_prose.fails(one._replace(path="README.md", severity="warning"))
