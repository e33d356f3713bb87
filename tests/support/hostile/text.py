"""A text that would do harm at a terminal or in a log."""

from __future__ import annotations

from namesrv_common.printable import UNPRINTABLE

MARKUP = "[bold]:bomb:<img src=x onerror=alert(1)>\"'"
HOSTILE = f"a\x1b[31mb\x9b1mc\u202ed\u2028e\nf\rg\x07h\u2066i\x7fj\t\u200bk\U000e0041{MARKUP}"
"""ESC and C1, bidirectional controls, ends of lines, what is not seen, and markup of our own tables and pages."""


def unescaped(shown: str) -> set[str]:
    """The characters of an output that should have been escaped; ends of lines are the output's own."""
    return {found.group() for found in UNPRINTABLE.finditer(shown)} - {"\n"}
