"""Each rule of docs/.vale finds a bad sentence and accepts a good one. Comments are read sentence by sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from docs.tools import lint_prose
from docs.tools.lint_prose import Finding

RULES = sorted(path.stem for path in (lint_prose.ROOT / "docs/.vale/Plain").glob("*.yml"))
EXAMPLES = {
    "Beside": ("It takes more time beside the naive server.", "It takes more time than the naive server."),
    "CameWent": ("The broker came an hour later.", "The broker registered an hour later."),
    "Diary": ("The accept thread used to wake up 50 times a second.", "The token is used to sign requests."),
    "DoubleNegatives": ("A change is never one that is lost.", "A change is kept."),
    "Headings": ("# Who cannot connect, and why", "# Refused connections"),
    "OverloadedWords": ("Each worker has a room.", "Each worker has a thread."),
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


@pytest.fixture(scope="module")
def vale() -> str:
    """The path of Vale."""
    path = lint_prose.find_vale("--present")
    if path is None:
        pytest.skip("Vale is missing: run docs/tools/install_vale.sh")
    return path


def findings(vale: str, folder: Path, texts: dict[str, str]) -> list[Finding]:
    """What Vale finds in files of a folder."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return lint_prose.lint(vale, texts, folder)


def test_each_rule_finds_its_bad_example_and_accepts_the_good_one(vale: str, tmp_path: Path) -> None:
    assert sorted(EXAMPLES) == RULES
    texts = {f"bad/{rule}.md": f"{bad}\n" for rule, (bad, _) in EXAMPLES.items()}
    texts |= {f"good/{rule}.md": f"{good}\n" for rule, (_, good) in EXAMPLES.items()}
    found = findings(vale, tmp_path, texts)
    assert {(one.path, one.rule) for one in found} >= {(f"bad/{rule}.md", f"Plain.{rule}") for rule in RULES}
    assert [one for one in found if one.path.startswith("good/")] == []


def test_each_kind_of_number_without_its_unit_is_found(vale: str, tmp_path: Path) -> None:
    page = f"{EXAMPLES['Units'][0]}\n\nUser 10001 took a megabyte on port 10911.\n"
    found = findings(vale, tmp_path, {"page.md": page})
    assert [one.message.split("'")[1] for one in found] == ["10000 topics", "10ms", "20%", "64KiB", "megabyte"]


def test_comments_and_docstrings_are_linted_at_their_lines(vale: str, tmp_path: Path) -> None:
    python = '''"""One sentence. Whoever reads it."""

MOST = 3  # whoever asks
"""Mended.

Args:
    name: A value; a unit; a
        reason.
"""
text = "whoever"  # noqa: S105
'''
    rust = '//! Whoever starts.\nfn main() {} // whoever\nlet s = "// whoever";\n'
    proto = "// A message.\nmessage A {\n  // Whoever answered.\n  string b = 1;\n}\n"
    found = findings(vale, tmp_path, {"a.py": python, "a.rs": rust, "a.proto": proto})
    assert [(one.path, one.line, one.rule.removeprefix("Plain.")) for one in found] == [
        ("a.proto", 3, "Subjects"),
        ("a.py", 1, "Subjects"),
        ("a.py", 3, "Subjects"),
        ("a.py", 4, "SoftWords"),
        ("a.py", 7, "Stacked"),
        ("a.rs", 1, "Subjects"),
        ("a.rs", 2, "Subjects"),
    ]


def test_list_items_table_cells_and_quotes_are_read_as_sentences_and_code_is_not(vale: str, tmp_path: Path) -> None:
    page = """\
- **Label:** whoever one; two.
  1. A; b;
     and; c.

     ```console
     $ whoever
     ```

| a | b |
|---|---|
| `whoever` \\| x; y; z | Whoever two. |
> Whoever three.

    whoever
"""
    found = findings(vale, tmp_path, {"page.md": page})
    assert [(one.line, one.rule) for one in found] == [
        (1, "Plain.Subjects"),
        (2, "Plain.Stacked"),
        (11, "Plain.Subjects"),
        (12, "Plain.Subjects"),
    ]


def test_the_style_guide_may_quote_bad_sentences(vale: str, tmp_path: Path) -> None:
    page = 'Never begin with *whoever*.\n\n- Bad: "Whoever opens a\n  connection." (a.md)\n- Good: "Connections."\n'
    assert findings(vale, tmp_path, {"docs/style.md": page}) == []
    assert [one.line for one in findings(vale, tmp_path, {"docs/style.md": page + "- Whoever\n"})] == [6]
    assert len(findings(vale, tmp_path, {"docs/other.md": page})) == 2


def test_the_unreleased_section_of_the_changelog_is_strict_and_the_others_are_counted() -> None:
    text = "# Changelog\n\n## Unreleased\n\n- One.\n\n## 0.1.0\n\n- Two.\n"
    assert lint_prose.unreleased(text) == range(3, 7)
    first = lint_prose.unreleased((lint_prose.ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[0]
    assert lint_prose.area(Finding("CHANGELOG.md", first, "Plain.Beside", "warning", "")) == "strict"
    assert lint_prose.area(Finding("CHANGELOG.md", 100_000, "Plain.Beside", "warning", "")) == "pages"


def test_errors_and_warnings_of_strict_pages_fail_and_suggestions_do_not() -> None:
    places = {lint_prose.area(Finding(path, 1, "Plain.Beside", "warning", "")) for path in lint_prose.STRICT}
    assert places == {"strict"}
    assert lint_prose.area(Finding("README.md", 1, "Plain.CameWent", "suggestion", "")) == ""


def test_one_finding_more_than_the_baseline_is_reported_with_its_area_and_rule() -> None:
    one = Finding("namesrv/cli.py", 1, "Plain.Beside", "warning", "")
    counts = lint_prose.count([one, one, one._replace(path="README.md"), one._replace(path="engine/src/lib.rs")])
    assert counts == {"engine": {"Plain.Beside": 1}, "product": {"Plain.Beside": 2}}
    assert list(lint_prose.exceeding(counts, counts)) == []
    assert list(lint_prose.exceeding(counts, {"product": {"Plain.Beside": 1}})) == [
        ("engine", "Plain.Beside"),
        ("product", "Plain.Beside"),
    ]


def test_the_baseline_is_sorted_and_names_only_rules_that_exist() -> None:
    baseline = json.loads(lint_prose.BASELINE.read_text(encoding="utf-8"))
    assert list(baseline) == sorted(baseline)
    assert {rule.removeprefix("Plain.") for rules in baseline.values() for rule in rules} <= set(RULES)


@pytest.mark.parametrize(("ci", "exit_code"), [("", 0), ("true", 1)])
def test_a_missing_vale_fails_in_ci_and_is_printed_elsewhere(
    ci: str, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("sys.argv", ["lint_prose.py"])
    monkeypatch.setattr(lint_prose, "find_vale", lambda: None)
    monkeypatch.setattr(lint_prose, "check_spelling", lambda _: True)
    with pytest.raises(SystemExit) as ended:
        lint_prose.main()
    assert int(ended.value.code or 0) == exit_code
    assert capsys.readouterr().out == "lint_prose: style not checked, because Vale is missing\n"


def test_a_missing_compiler_of_vale_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "tools"
    folder.mkdir(parents=True)
    script = shutil.copy(lint_prose.ROOT / "docs/tools/install_vale.sh", folder)
    for name in ("sh", "dirname", "grep"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        ["sh", script],
        env={"PATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no Vale 3.15.2 and no Go to compile it with\n"
