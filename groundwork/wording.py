"""Wording of texts that people read."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 broker`` and ``2,000 brokers``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def how_to_install(extra: str) -> str:
    """Returns the remedy for a missing library, for an error of one line.

    It names a path and not only the package's name: no registry has the package, and anybody could register the name.

    Args:
        extra: The extra of this project that brings the library.
    """
    return f"install the extra {extra} (in a clone: pip install -e '.[{extra}]')"
