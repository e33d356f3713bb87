"""The prose lint: each rule of docs/.vale finds its bad example and accepts the good one, and broken links fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.tools import lint_prose
from docs.tools.lint_prose import Finding

EXAMPLES = {
    "Beside": ("It takes more time beside the naive server.", "It takes more time than the naive server."),
    "CameWent": ("The broker came an hour later.", "The broker registered an hour later."),
    "Diary": ("The accept thread used to wake up 50 times a second.", "The token is used to sign requests."),
    "DoubleNegatives": ("A change is never one that is lost.", "A change is kept."),
    "Headings": ("# Who cannot connect, and why", "# Refused connections"),
    "OverloadedWords": ("Each worker has a room.", "Each worker serves its connections in turn."),
    "Persons": ("The log says who calls and what he may do.", "The log says what the caller may do."),
    "Pronouns": ("Those for calls that have ended are dropped.", "Commands for calls that have ended are dropped."),
    "Ratios": ("It is 2.3 times better.", "It answers 2.3 times as many lookups as Java."),
    "SeeElsewhere": ("As in GetTopicRouteRequest.", "If set, omit groups of other zones."),
    "SentenceLength": (f"This is {'a long and ' * 10}winding sentence.", "This is a short sentence."),
    "SoftWords": ("An option mends this.", "An option prevents this."),
    "Stacked": ("It reads; it writes; it ends.", "It reads; it writes (RocketMQ: DataVersion)."),
    "Subjects": ("Whoever sends nothing is not logged.", "Connections that send nothing are not logged."),
    "TailRelatives": ("There are ten steps, of which four wait.", "Four of the ten steps wait."),
    "Units": ("It takes 10ms, 64KiB and 20% for 10000 topics.", "It takes 10 ms, 64 KiB and 20 % for 10,000 topics."),
}
"""A bad and a good text for each rule."""
CODE = 'MOST = 3  # whoever asks\n"""Mended."""\ntext = "whoever"\n'


def test_each_rule_finds_its_bad_example_and_accepts_the_good_one(tmp_path: Path) -> None:
    vale = lint_prose.find_vale("--present")
    if vale is None:
        pytest.skip("Vale is missing: run docs/tools/install_vale.sh")
    assert set(EXAMPLES) == {path.stem for path in (lint_prose.ROOT / "docs/.vale/Plain").glob("*.yml")}
    texts = {f"bad_{rule}.md": f"{bad}\n" for rule, (bad, _) in EXAMPLES.items()}
    texts |= {f"good_{rule}.md": f"{good}\n" for rule, (_, good) in EXAMPLES.items()}
    texts["code.py"] = CODE
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = lint_prose.lint(vale, texts, tmp_path)
    assert {(one.path, one.rule) for one in found} >= {(f"bad_{rule}.md", f"Plain.{rule}") for rule in EXAMPLES}
    assert [one for one in found if one.path.startswith("good_")] == []
    in_code = [(one.line, one.rule) for one in found if one.path == "code.py"]
    assert in_code == [(1, "Plain.Subjects"), (2, "Plain.SoftWords")]


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
