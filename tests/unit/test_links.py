"""Links of all pages: files and anchors exist, and addresses have the form of an address."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS = re.compile(r"https://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?:/[\w./~%+@:=&?#-]*[\w/])?")
LINK = re.compile(r"\]\(([^)\s]*)(?: +\"[^\"]*\")?\)|^\[[^]^]+\]: +(\S+)|\bhref=\"([^\"]*)\"", re.MULTILINE)


def tracked_pages() -> list[str]:
    """All Markdown files of the repository, the new ones included."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    return sorted(path for path in listed.split("\0") if path and (ROOT / path).is_file())


def without_code(text: str) -> str:
    """The text of a page without its blocks and spans of code."""
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "code", text, flags=re.DOTALL)


def links(text: str) -> list[str]:
    """The targets of a page's links and pictures."""
    return ["".join(found) for found in LINK.findall(without_code(text))]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those that the page sets itself."""
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.+?)#* *$", text, re.MULTILINE):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w -]", "", title).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def broken_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere. The parts of generated pages link to anchors of the whole page."""
    broken = []
    whole = page.with_name(page.name.replace(".intro.md", ".md"))
    for link in links(page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else whole
        if re.match(r"[a-z]+:", link):
            good = bool(ADDRESS.fullmatch(link))
        else:
            good = bool(link) and target.resolve().is_relative_to(ROOT) and target.exists()
            good &= not anchor or (target.is_file() and anchor in anchors(target.read_text(encoding="utf-8")))
        if not good:
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", tracked_pages())
def test_links_of_a_page_lead_to_files_and_headings_that_exist(page: str) -> None:
    assert broken_links(ROOT / page) == []


def test_each_kind_of_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.test_links.ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A `code` heading\n\n## Twice\n\n## Twice\n\n```\n# No heading\n```\n")
    good = [
        "other.md",
        "other.md#a-code-heading",
        "other.md#twice-1",
        "#top",
        "https://example.org/a",
        "https://a.example",
    ]
    bad = [
        "none.md",
        "other.md#twice-2",
        "other.md#no-heading",
        "../page.md",
        "http://a.example",
        "https://a",
        "ftp://a.b",
        "",
    ]
    page = tmp_path / "page.md"
    page.write_text("# Top\n\n`[code](none.md)`\n\n" + "".join(f"- [text]({link})\n" for link in good + bad))
    assert broken_links(page) == bad
