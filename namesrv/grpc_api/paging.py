"""Pages of names: the same tokens and bounds for every list."""

from __future__ import annotations

import base64
import binascii
from functools import partial
from typing import NamedTuple, Protocol

from namesrv.app import field_rules
from namesrv.app.worker import Worker
from namesrv.core.errors import InvalidField
from namesrv.core.topic_lists import NamesAfter


class AsksForPage(Protocol):
    """A request for a page."""

    page_size: int
    page_token: str


class Page(NamedTuple):
    """A page of names."""

    names: list[str]
    next_page_token: str
    """Where the next page starts; empty if this is the last one."""


async def page_of(request: AsksForPage, names_after: NamesAfter, reader: Worker) -> Page:
    """Makes the page that a request asks for, on a thread.

    Raises:
        InvalidField: The size is negative, or the token none of ours.
    """
    size = field_rules.page_size(request.page_size)
    # One more than fits tells whether there is a next page.
    names = await reader.run(partial(names_after, last_of_page_before(request.page_token), size + 1))
    page = names[:size]
    return Page(page, page_token(page[-1]) if len(names) > size else "")


def page_token(last_name: str) -> str:
    """A token that stays valid while the tables change: it says after which name to go on."""
    return base64.urlsafe_b64encode(last_name.encode()).decode()


def last_of_page_before(token: str) -> str:
    """The name to go on after; empty for the first page. Raises InvalidField."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidField("page_token", "is not a next_page_token of this call") from None
