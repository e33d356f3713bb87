#!/usr/bin/env python3
"""Lints the prose of pages, docstrings and comments: spelling with codespell, style with Vale, links of pages.

The rules are in docs/.vale/, and docs/style.md explains them. Each finding in code fails, and on pages each error and
warning.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "docs/.vale.ini"
GENERATED = tuple(
    f"docs/{name}.md" for name in ("limits", "log_events", "metrics", "nsctl", "nsctl_options", "settings", "states")
)
"""Their sources are linted."""
QUOTING = ("docs/glossary.md", "docs/style.md")
"""Pages that mention words which are not to be used: in italics, or quoted after ``Bad:``."""
MENTION = re.compile(r"""(?<![*\w])\*[^*\s](?:[^*]*[^*\s])?\*(?![*\w])|(?<=\bBad: )"[^"]*\"""")
PROSE = (".md", ".proto", ".py", ".rs")
UNSPELLED = re.compile(
    r"^docs/\.vale/|^tests/fuzz/corpus/|^engine/tests/corpus/|(?:\.lock|go\.sum|package-lock\.json)$"
    r"|\.(?:bin|png|svg|parquet|snappy|gz|jar)$"
)
"""Lock files, inputs of tests and binary files."""
VENDORED = "engine/vendor/h2/"
"""Sources of others."""
NOT_FOR_TESTS = {f"Plain.{rule}" for rule in ("CameWent", "OverloadedWords", "Persons", "Pronouns", "Subjects")}
"""Rules that comments and docstrings of tests may break."""
SECTION = re.compile(r"^(?:Args|Arguments|Attributes|Raises|Returns|Yields):$")
NAMED = re.compile(r"^[*\w][\w.,* ]*(?:\([^)]*\))?: ")
MARKER = re.compile(r"^(?:noqa|type:|fmt:|ruff:|mypy:|pragma|nosec|!)")
FENCE = re.compile(r" {0,3}(?:[-*+] +)?(```+|~~~+)")
LIST_ITEM = re.compile(r"( {0,3}(?:[-*+]|\d{1,3}[.)]) +)(\*\*[^*]+[.:]\*\* |(?:Bad|Good): )?(\S.*)$")
"""Marker, label and text."""
QUOTE = re.compile(r"^ {0,3}> ?")
TABLE_ROW = re.compile(r"\s*\|(.*)\|\s*$")
CELL_BORDER = re.compile(r"(?<!\\)\|")
LINK = re.compile(r"\]\(([^)\s]*)\)|^\[[^]^]+\]: +(\S+)|\bhref=\"([^\"]*)\"", re.MULTILINE)
CODE = re.compile(r"^( *)(```+).*?^ *\2 *$|(?<!`)(`+)(?!`).*?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
NAMED_TEST = re.compile(r"(?:\btests/)?((?:\w+/)*test_\w+\.py)(?:::(\w+))?")
TRAILING = re.compile(r"[;,{}()\]] +// (.+)$")


class Finding(NamedTuple):
    """One finding of Vale."""

    path: str
    line: int
    rule: str
    severity: str
    """``error``, ``warning`` or ``suggestion``."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule.removeprefix('Plain.')} ({self.severity}): {self.message}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.parse_args()
    files = listed_files()
    broken = [line for path in files if path.endswith(".md") for line in broken_links(ROOT / path)]
    print("".join(f"{line}\n" for line in broken), end="")
    failed = not check_spelling(files) or bool(broken)
    vale = find_vale()
    if vale is None:
        print("lint_prose: style not checked, because Vale is missing")
        sys.exit(failed or os.environ.get("CI") == "true")
    found = lint(vale, [path for path in files if path.endswith(PROSE) and path not in GENERATED])
    fatal = [finding for finding in found if fails(finding)]
    print("".join(f"{finding}\n" for finding in fatal), end="")
    sys.exit(failed or bool(fatal))


def listed_files() -> list[str]:
    """The files that git tracks, and the new ones that it does not ignore; without vendored sources."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
    return sorted(path for path in listed.split("\0") if (ROOT / path).is_file() and not path.startswith(VENDORED))


def find_vale(*options: str) -> str | None:
    """The path of Vale, which is compiled first if need be. None if there is none: standard error says why."""
    command = ["sh", str(ROOT / "docs/tools/install_vale.sh"), *options]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def check_spelling(files: list[str]) -> bool:
    """Whether codespell finds nothing. Its configuration is in pyproject.toml."""
    codespell = Path(sys.executable).with_name("codespell")
    words = [path for path in files if not UNSPELLED.search(path)]
    return subprocess.run([codespell, *words], cwd=ROOT, check=False).returncode == 0


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page to files and headings that do not exist, and the tests that it names and that do not."""
    text = page.read_text(encoding="utf-8")
    whole = page.with_name(page.name.replace(".intro.md", ".md"))  # the page that the part of a generated one is in
    for link in ("".join(found) for found in LINK.findall(CODE.sub("code", text))):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else whole
        if not re.match("(?:https|mailto):", link) and not (
            target.exists() and (not anchor or anchor in anchors(target))
        ):
            yield f"{page.name}: the link {link!r} leads nowhere"
    for file, test in NAMED_TEST.findall(text):
        if not any(not test or f"def {test}(" in found.read_text("utf-8") for found in ROOT.glob(f"tests/**/{file}")):
            yield f"{page.name}: there is no test {file}::{test}"


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them, and those that it sets itself."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^(```+).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in plain} | set(
        re.findall('<a id="([^"]+)"', text)
    )


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def fails(finding: Finding) -> bool:
    """Whether a finding fails the check."""
    if finding.path.endswith(".md"):
        return finding.severity != "suggestion"
    return not (finding.path.startswith("tests/") and finding.rule in NOT_FOR_TESTS)


def lint(vale: str, paths: Iterable[str], root: Path = ROOT) -> list[Finding]:
    """What Vale finds in pages and source files, sorted by file and line."""
    numbers: dict[str, list[int]] = {}
    with TemporaryDirectory() as folder:
        for path in paths:
            lines = list(paragraphs(prose(path, (root / path).read_text(encoding="utf-8"))))
            copy = path if path.endswith(".md") else f"{path}.md"
            numbers[copy] = [number for number, _ in lines]
            Path(folder, copy).parent.mkdir(parents=True, exist_ok=True)
            Path(folder, copy).write_text("".join(f"{line}\n" for _, line in lines), encoding="utf-8")
        command = [vale, "--config", str(CONFIGURATION), "--output", "JSON", "--no-exit", "."]
        done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"vale: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return sorted(
        Finding(source_of(copy), numbers[copy][one["Line"] - 1], one["Check"], one["Severity"], one["Message"])
        for copy, findings in json.loads(done.stdout).items()
        for one in findings
    )


def source_of(copy: str) -> str:
    """The path of the file that a copy was made of."""
    path = copy.removesuffix(".md")
    return path if path.endswith(PROSE) else copy


def prose(path: str, text: str) -> list[str]:
    """The lines of a file as Markdown. In source files, lines without a comment or docstring become empty."""
    if path in QUOTING:
        text = MENTION.sub(lambda mention: "*mention*" + "\n" * mention[0].count("\n"), text)
    if path.endswith(".md"):
        return text.splitlines()
    lines = [""] * (text.count("\n") + 1)
    for number, line in python_prose(text) if path.endswith(".py") else line_comments(text):
        lines[number - 1] = line
    return lines


def line_comments(text: str) -> Iterator[tuple[int, str]]:
    """The comments of Rust and protobuf, with their line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if comment := re.match(r"\s*//[/!]?(?: (.*))?$", line):
            yield number, comment[1] or ""
        elif comment := TRAILING.search(line):
            yield number, f"- {comment[1]}"


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """The comments of Python, docstrings, and the strings under fields and constants, with their line numbers."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comment = token.string.removeprefix("#").removeprefix(" ")
        if token.type == tokenize.COMMENT and not MARKER.match(comment):
            yield token.start[0], f"- {comment}" if token.line[: token.start[1]].strip() else comment
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            end = node.end_lineno or node.lineno
            yield from enumerate(docstring(lines[node.lineno - 1 : end]), node.lineno)


def docstring(source: list[str]) -> Iterator[str]:
    """The lines of a docstring without quotes and indentation. Its sections become lists."""
    indentation = len(source[0]) - len(source[0].lstrip())
    in_section = False
    for line in source:
        text = re.sub(r'^[rR]?"{1,3}|"{1,3}$', "", line[indentation:].rstrip())
        inner = text.strip()
        if SECTION.match(inner):
            in_section = True
            yield ""
        elif not in_section:
            yield text
        elif named := NAMED.match(inner):
            yield f"- {inner[named.end() :]}"
        else:
            yield f"  {inner}".rstrip()


def paragraphs(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Writes list items, table cells and quotes as paragraphs, with their original line numbers; drops blocks of code.

    Vale checks sentences in paragraphs only, and takes some blocks of code for paragraphs.
    """
    fence = ""
    indentation = 0  # of the text of the present list item
    after_blank = True
    for number, line in enumerate(lines, 1):
        if line[:indentation].strip():
            indentation = 0
            yield number, ""
        text = line[indentation:]
        opening = FENCE.match(text)
        code = bool(fence or opening) or (after_blank and text.startswith("    "))
        after_blank = not text.strip() or code
        if fence or opening:
            closed = text.strip() == fence
            fence = opening[1] if opening and not fence else "" if closed else fence
        if code or after_blank:
            yield number, ""
        elif item := LIST_ITEM.match(text):
            indentation += len(item[1])
            yield from ((number, line) for line in ("", item[2] or "", "", item[3]))
        elif row := TABLE_ROW.match(text):
            cells = [cell.strip().replace("; ", ". ") for cell in CELL_BORDER.split(row[1])]  # each item is a sentence
            yield from ((number, line) for cell in cells if cell.strip("-: ") for line in (cell, ""))
        else:
            yield number, QUOTE.sub("", text)


if __name__ == "__main__":
    main()
