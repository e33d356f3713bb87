"""The forms in which name servers are named: a list of ``host:port``, a file of them, the URL of an address server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from groundwork.endpoints import Endpoint, parse_endpoints
from groundwork.files import open_regular

FILE_PREFIX = "file:"
"""What comes before the path of a file that holds the list."""
MAX_NAME_SERVERS = 64
"""Most name servers: each costs a connection and two threads, and a wrong list must not exhaust the machine."""
MAX_LIST_BYTES = 64 * 1024
"""Longest text of a list that is read from a file or an address server: a wrong one must not fill the memory."""


def check_namesrv(texts: Sequence[str]) -> list[str]:
    """Checks a setting that names the name servers and writes it in one way.

    Args:
        texts: ``host:port`` lists, as many as one likes, or ``file:`` and the path of a file, alone. No text at all
            means an empty list, which an address server will fill.

    Raises:
        ValueError: It is neither; the message says which part breaks which rule.
    """
    if not texts:
        return []
    if not any(text.strip().startswith(FILE_PREFIX) for text in texts):
        return [str(name) for name in _bounded(parse_endpoints(texts))]
    if len(texts) > 1:
        raise ValueError(f"{FILE_PREFIX} stands alone: the file holds the whole list")
    path = texts[0].strip().removeprefix(FILE_PREFIX)
    if not path:
        raise ValueError(f"{texts[0]!r} names no file: write {FILE_PREFIX}/path/of/the/list")
    return [FILE_PREFIX + path]


def check_address_server(url: str) -> str:
    """Checks the URL of an address server.

    Raises:
        ValueError: It is no http or https URL; the message says what is wrong.
    """
    split_address_server(url)
    return url


def split_address_server(url: str) -> SplitResult:
    """The parts of an address server's URL.

    Raises:
        ValueError: As for ``check_address_server``.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"URL {url[:80]!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"URL {url[:80]!r} is not of the form http://host[:port]/path or https://host[:port]/path")
    if parts.username is not None or parts.fragment:
        raise ValueError(f"URL of host {parts.hostname!r} has a user or a fragment: neither is sent to address servers")
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError(f"URL {url[:80]!r} has a blank or a character beyond ASCII: write it percent-encoded")
    return parts


def parse_list(text: str) -> tuple[Endpoint, ...]:
    """Parses the text of a file or the answer of an address server.

    One line or several, with any separator, also at the end, as address servers write it; ``#`` starts a comment.

    Raises:
        ValueError: It is not a list of at most ``MAX_NAME_SERVERS`` addresses.
    """
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return _bounded(parse_endpoints(line.rstrip(";, ") for line in lines if line))


def read_list_file(path: Path) -> tuple[Endpoint, ...]:
    """Reads a file that holds the list.

    Raises:
        ValueError: The file cannot be read or is no list; the message names it.
    """
    try:
        with open_regular(path) as file:
            content = file.read(MAX_LIST_BYTES + 1)
        return parse_list(decode_list(content))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def decode_list(content: bytes) -> str:
    """The text of a list.

    Raises:
        ValueError: It is too long or no text.
    """
    if len(content) > MAX_LIST_BYTES:
        raise ValueError(f"the list has more than {MAX_LIST_BYTES} bytes")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError as error:
        raise ValueError(f"the list has byte {content[error.start]:#04x}, which is not ASCII") from error


def _bounded(names: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    if len(names) > MAX_NAME_SERVERS:
        raise ValueError(f"the endpoint list has {len(names)} elements, at most {MAX_NAME_SERVERS}")
    return names
