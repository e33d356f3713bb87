"""Patterns of broker groups, ``CLUSTER/BROKER``: the notation of permits and of the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAMES = re.compile(r"[^/@]+/[^/@]+")
"""A pattern matches an at sign in a name by ``*``, and a slash by nothing."""

Group = tuple[str, str]
"""The names of a broker group: cluster and broker."""


@dataclass(frozen=True, slots=True)
class GroupPattern:
    """Names of broker groups, ``CLUSTER/BROKER``, where ``*`` stands for any characters of a name."""

    text: str
    _compiled: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> GroupPattern:
        """Reads a pattern. Raises ValueError if the text is no pattern."""
        if not (_NAMES.fullmatch(text) and text.isprintable()):
            raise ValueError(f"{text!r} is not CLUSTER/BROKER; * stands for any characters of a name")
        return cls(text, re.compile(re.escape(text).replace(r"\*", "[^/]*")))

    def matches(self, group: Group) -> bool:
        return self._compiled.fullmatch("/".join(group)) is not None
