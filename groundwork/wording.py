"""Wording of texts that people read."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 broker`` and ``2,000 brokers``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
