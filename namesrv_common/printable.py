"""Text from outside, made safe to print, and counted nouns."""

from __future__ import annotations

import json
import re
import sys

from namesrv_common.version import __version__

# Text from outside as a terminal or a log may have it: nothing in it moves the cursor or ends a line.

UNPRINTABLE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: ESC, newlines, and C1 among them
    "\xad\u180e\u200b-\u200f\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # not seen, or change what is
    "\u061c\u2028-\u202e"  # separators of lines and paragraphs, and bidirectional controls (with some of the above)
    "\ud800-\udfff"  # half characters, which no stream can encode
    "]"
)
"""The characters that are written as escapes."""


def printable(text: str) -> str:
    r"""The text with escapes such as ``\n``, ``\x1b`` and ``\u202e`` instead of such characters.

    A backslash stays as it is, so that paths and patterns can be read. The result is for people, not for parsers.
    """
    return UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """The same JSON, with escapes of its own."""
    return UNPRINTABLE.sub(_escape_json, text)


def print_error(program: str, text: str) -> None:
    """Writes one line to standard error: what a program tells the person who started it."""
    sys.stderr.write(f"{program}: {printable(text)}\n")


def _escape_json(found: re.Match[str]) -> str:
    """Keeps newlines between values: those in values are escaped already."""
    character = found.group()
    return character if character == "\n" else json.dumps(character)[1:-1]


# Wording of texts that people read.


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 broker`` and ``2,000 brokers``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def how_to_install(extra: str) -> str:
    """Returns the remedy for a missing library, for an error of one line.

    It names paths instead of the package: no registry has the package, and anybody could register its name.
    """
    wheel = f"./namesrv-{__version__}-py3-none-any.whl"
    return f"install the extra {extra}: pip install -e '.[{extra}]' in a clone, or pip install '{wheel}[{extra}]'"
