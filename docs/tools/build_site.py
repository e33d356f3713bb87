#!/usr/bin/env python3
"""Builds the documentation site into build/site, from the pages that the navigation of zensical.toml names.

The start page is README.md. Pages about gRPC are made here, and links to their sources, such as protos/, lead to them.
A link to another file that is not on the site becomes its text and the file's path. A link that is named by its page's
file gets the page's title. Zensical checks all other links.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.tools import grpc_pages

ROOT = Path(__file__).parents[2]
FOR_CONTRIBUTORS = {"docs/architecture.md", "docs/style.md"}
"""Pages that are only in the repository, like docs/decisions."""
SOURCES = grpc_pages.sources()
FENCE_OR_LINK = re.compile(
    r"^( *`{3,}).*?^\1 *$|(!?)\[((?:`[^`]*`|[^]`])*)\]\(([^)#\s]+)([^)\s]*)\)", re.MULTILINE | re.DOTALL
)


def main() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    made = grpc_pages.site_pages()
    named = set(pages_of(project["nav"]))
    if unnamed := made.keys() - named:
        sys.exit(f"zensical.toml has no {', '.join(sorted(unnamed))}: add it to nav")
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in named - made.keys()} | made
    sources = {f"docs/{page.name}" for page in ROOT.glob("docs/*.md") if not page.name.endswith(".intro.md")}
    if forgotten := sources - pages.keys() - FOR_CONTRIBUTORS:
        sys.exit(f"zensical.toml has no {', '.join(sorted(forgotten))}: add it to nav, or here to FOR_CONTRIBUTORS")
    copies = ROOT / project["docs_dir"]
    shutil.rmtree(copies, ignore_errors=True)
    for page in pages:
        text, pictures = for_site(page, pages)
        for file in (page, *pictures):
            (copies / file).parent.mkdir(parents=True, exist_ok=True)
        (copies / page).write_text(text, encoding="utf-8")
        for picture in pictures:
            shutil.copy(ROOT / picture, copies / picture)
    zensical = Path(sys.executable).with_name("zensical")
    sys.exit(subprocess.run([zensical, "build", "--strict", "--clean"], cwd=ROOT, check=False).returncode)


def pages_of(navigation: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of a navigation, by their paths in the repository."""
    for entry in navigation:
        for below in entry.values():
            yield from [below] if isinstance(below, str) else pages_of(below)


def anchor(label: str, text: str) -> str:
    """The anchor of the heading of a page that a link's label names, or nothing."""
    heading = label.strip("`")
    return f"#{heading.lower()}" if f"\n## {heading}\n" in text or f"\n### {heading}\n" in text else ""


def for_site(page: str, pages: dict[str, str]) -> tuple[str, list[str]]:
    """A page as the site has it, and the pictures that it shows, by their paths in the repository."""
    pictures = []

    def replaced(found: re.Match[str]) -> str:
        fence, is_picture, label, link, _ = found.groups()
        if fence or re.match("(?:https?|mailto):", link):
            return found[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
        if is_picture:
            pictures.append(target)
        if shown_on := SOURCES.get(target):
            return f"[{label}]({posixpath.relpath(shown_on, posixpath.dirname(page))}{anchor(label, pages[shown_on])})"
        if target in pages and label.endswith(".md"):
            return found[0].replace(label, re.findall("^# (.+)", pages[target], re.MULTILINE)[0], 1)
        if is_picture or target in pages:
            return found[0]
        if not (ROOT / target).exists():
            sys.exit(f"{page}: the link {link!r} leads nowhere")
        return f"`{target}`" if target.endswith(label.strip("`")) else f"{label} (`{target}`)"

    return FENCE_OR_LINK.sub(replaced, pages[page]), pictures


if __name__ == "__main__":
    main()
