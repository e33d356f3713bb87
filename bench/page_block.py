"""Parts of a page that programs write: each stands under its heading, between two marks, and all else stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PageBlock(NamedTuple):
    """A part of a page that one program writes."""

    heading: str
    """Put above it where the page does not have it yet."""
    begin: str
    end: str

    def of(self, lines: Iterable[str]) -> str:
        """The block with these lines."""
        return "\n".join((self.begin, "", *lines, "", self.end))

    def put_into(self, page: str, block: str) -> str:
        """The page with the block between its marks; at its end if it has none."""
        before, begin, rest = page.partition(self.begin)
        if not begin:
            return f"{page.rstrip()}\n\n## {self.heading}\n\n{block}\n"
        return before + block + rest.partition(self.end)[2]

    def found_in(self, page: str) -> str:
        """The block that a page has; empty if it has none."""
        _, begin, rest = page.partition(self.begin)
        block, end, _ = rest.partition(self.end)
        return begin + block + end if end else ""


ENGINE = PageBlock("The native engine", "<!-- engine: written by `make bench-engine` -->", "<!-- engine: end -->")
REMOTING = PageBlock(
    "RocketMQ's protocol", "<!-- remoting: written by `make bench-remoting` -->", "<!-- remoting: end -->"
)
BLOCKS = (ENGINE, REMOTING)
"""In their order on the page."""
