"""Pages of all paged calls: which rows a request asks for, and the token of the next page.

A token has a hash of its call with all parameters but the page's size, and the last position. It stays valid
while the tables change, and across a restart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, cast

from google.protobuf.message import Message

from namesrv import limits
from namesrv.core.errors import invalid_field

_HASH_BYTES = 6
"""A multiple of three: the hash and the position are encoded apart from each other."""

_MAX_NUMBER = 2**63 - 1
"""The largest number of a position: the database has 64 bits for it."""

RowT = TypeVar("RowT")
PositionT = TypeVar("PositionT", bound=NamedTuple)


class Name(NamedTuple):
    """The position in a list of names."""

    name: str


class AsksForPage(Protocol):
    """A request for a page."""

    page_size: int
    page_token: str

    def CopyFrom(self, other: Self, /) -> None: ...


class PageAsked(NamedTuple, Generic[PositionT]):
    """The page that a request asks for."""

    request: AsksForPage
    after: PositionT
    """The position of the last row of the page before."""
    size: int

    @property
    def limit(self) -> int:
        """The number of rows to look for. One more than fits tells whether there is a next page."""
        return self.size + 1

    def cut(
        self, found: Sequence[RowT], position: Callable[[RowT], PositionT], fitting: int = limits.MAX_PAGE_SIZE
    ) -> tuple[Sequence[RowT], str]:
        """Returns the rows of the page, and the token of the next one, which is empty if this is the last.

        Args:
            fitting: How many rows fit into the answer.
        """
        page = found[: min(self.size, fitting)]
        return page, token_after(self.request, position(page[-1])) if len(page) < len(found) else ""


def paged(
    request: AsksForPage, start: PositionT, *, most: int = limits.MAX_PAGE_SIZE, default: int = limits.DEFAULT_PAGE_SIZE
) -> PageAsked[PositionT]:
    """Reads which page a request asks for.

    Args:
        start: A position before all rows. Each part of their positions is greater, and of the same type.
        most: The largest page.
        default: The size of a page if the request has none.

    Raises:
        INVALID_FIELD: The size is negative, or the token is not of this call.
    """
    if request.page_size < 0:
        raise invalid_field("page_size", f"is {request.page_size}, must not be negative")
    after = _position(request, start) if request.page_token else start
    return PageAsked(request, after, min(request.page_size or default, most))


def token_after(request: AsksForPage, position: tuple[str | int, ...]) -> str:
    """The token of the page after a position, for the call and the parameters of a request."""
    return base64.urlsafe_b64encode(_hash_of(request) + _text_of(position).encode()).decode()


def _position(request: AsksForPage, start: PositionT) -> PositionT:
    with suppress(binascii.Error, ValueError):
        token = base64.b64decode(request.page_token, altchars=b"-_", validate=True)
        text = token[_HASH_BYTES:].decode()
        texts = text.split("\n", len(start) - 1)
        parts = [type(first)(part) for first, part in zip(start, texts, strict=True)]
        is_own = token[:_HASH_BYTES] == _hash_of(request) and text == _text_of(parts)
        is_after = all(first < part for first, part in zip(start, parts, strict=True))
        if is_own and is_after and not any(isinstance(part, int) and part > _MAX_NUMBER for part in parts):
            return start._make(parts)
    problem = "is not a next_page_token of this call with these parameters; pass it on unchanged"
    raise invalid_field("page_token", problem)


def _text_of(position: Iterable[str | int]) -> str:
    return "\n".join(map(str, position))


def _hash_of(request: AsksForPage) -> bytes:
    asked = type(request)()
    asked.CopyFrom(request)
    asked.page_size, asked.page_token = 0, ""
    message = cast("Message", asked)
    call, parameters = message.DESCRIPTOR.full_name.encode(), message.SerializeToString(deterministic=True)
    return hashlib.blake2b(call + b"\0" + parameters, digest_size=_HASH_BYTES).digest()
