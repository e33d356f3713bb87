"""The console of programs that draw tables. It escapes text from outside.

Needs rich, which not every part of this package does.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from namesrv_common.printable import printable


class TableConsole(Console):
    """A console to which all strings are plain text: no markup, no emoji codes, and nothing that moves the cursor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, highlight=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string as rich draws it: every cell, title and line comes by here."""
        return super().render_str(printable(text), **options)
