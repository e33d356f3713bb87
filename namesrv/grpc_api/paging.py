"""Pages: the tokens of all paged calls, and pages of names.

A token has a hash of its call with all parameters but the page's size, and the position to go on after. It stays valid
while the tables change, and across a restart.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import partial
from typing import NamedTuple, Protocol, Self, cast

from google.protobuf.message import Message

from namesrv.app import field_rules
from namesrv.app.worker import Worker
from namesrv.core.errors import Refused, invalid_field
from namesrv.core.topic_lists import NamesAfter

_HASH_BYTES = 6
"""A multiple of three: the hash and the position are encoded apart from each other."""


class AsksForPage(Protocol):
    """A request for a page."""

    page_size: int
    page_token: str

    def CopyFrom(self, other: Self, /) -> None: ...  # noqa: N802 - protobuf's names


class Page(NamedTuple):
    """A page of names."""

    names: list[str]
    next_page_token: str
    """Where the next page starts; empty if this is the last one."""


async def page_of(request: AsksForPage, names_after: NamesAfter, reader: Worker, owner: str) -> Page:
    """Makes the page that a request asks for, on a thread.

    Raises:
        INVALID_FIELD: The size is negative, or the token is not of this call.
    """
    size = field_rules.page_size(request.page_size)
    # One more than fits tells whether there is a next page.
    names = await reader.run(partial(names_after, position_of(request), size + 1), owner)
    page = names[:size]
    return Page(page, token_after(request, page[-1]) if len(names) > size else "")


def token_after(request: AsksForPage, position: str) -> str:
    """The token of the page after a position, for the call and the parameters of a request."""
    return base64.urlsafe_b64encode(_hash_of(request) + position.encode()).decode()


def position_of(request: AsksForPage) -> str:
    """The position to go on after; empty for the first page. Raises INVALID_FIELD."""
    if not request.page_token:
        return ""
    try:
        token = base64.b64decode(request.page_token, altchars=b"-_", validate=True)
        position = token[_HASH_BYTES:].decode()
    except (binascii.Error, ValueError):
        raise foreign_token() from None
    if token[:_HASH_BYTES] != _hash_of(request) or not position:
        raise foreign_token()
    return position


def foreign_token() -> Refused:
    """The error for a token that no answer to this call had."""
    return invalid_field(
        "page_token", "is not a next_page_token of this call with these parameters; pass it on unchanged"
    )


def _hash_of(request: AsksForPage) -> bytes:
    asked = type(request)()
    asked.CopyFrom(request)
    asked.page_size, asked.page_token = 0, ""
    message = cast("Message", asked)
    call = message.DESCRIPTOR.full_name.encode()
    return hashlib.blake2b(
        call + b"\0" + message.SerializeToString(deterministic=True), digest_size=_HASH_BYTES
    ).digest()
