"""What pages of Markdown show: programs and consoles, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def code_blocks(page: str, language: str, section: str | None = None) -> list[str]:
    """The code blocks of a page in one language, in order.

    Args:
        page: A path within the project, such as ``docs/nsctl.md``.
        language: The word after the backquotes.
        section: Only blocks below this heading of the second level.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
