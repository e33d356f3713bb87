"""What pages of Markdown show: programs and consoles, for tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def code_blocks(page: str, language: str) -> list[str]:
    """The blocks of a page that are in a language, in their order.

    Args:
        page: A path within the project, such as ``docs/nsctl.md``.
        language: What follows the backquotes.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
