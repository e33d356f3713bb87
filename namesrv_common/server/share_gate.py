"""The gate of health and reflection, which everybody may call: each caller has a share of the open calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from namesrv_common.server.rpc_handlers import NO_LIMIT, Context, RequestT
from namesrv_common.server.shares import Sharer, Shares, sharer_at


class ShareGate:
    """Lets in every caller that has a share left, counted by its address."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares

    def enter(self, context: Context) -> Sharer:
        """A call begins; ``leave`` must follow unless this raises. Raises OVERLOADED if no share is left."""
        sharer = sharer_at(context.peer())
        self.shares.take(sharer)
        return sharer

    def checked(self, entered: Sharer, request: RequestT, context: Context) -> RequestT:  # noqa: ARG002 - see Gate
        """The request: everybody may ask for anything."""
        return request

    def while_allowed(self, entered: Sharer, context: Context) -> AbstractContextManager[None]:  # noqa: ARG002 - see Gate
        """A context without a limit: nobody can lose the right to these services."""
        return NO_LIMIT

    def leave(self, entered: Any) -> None:
        self.shares.give_back(entered)

    def has_room(self) -> bool:
        """Whether any caller could make another call."""
        return self.shares.has_room_for_anyone()
