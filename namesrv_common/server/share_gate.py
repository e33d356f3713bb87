"""The gate of health and reflection, which everybody may call: each caller has a share of the open calls."""

from __future__ import annotations

from namesrv_common.server.rpc_handlers import Context, Gate
from namesrv_common.server.shares import Sharer, Shares, sharer_at


class ShareGate(Gate):
    """Lets in every caller that has a share left, counted by its address."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares

    def enter(self, context: Context) -> Sharer:
        """A call begins. Raises OVERLOADED if no share is left."""
        sharer = sharer_at(context.peer())
        self.shares.take(sharer)
        return sharer

    def leave(self, entered: Sharer) -> None:
        self.shares.give_back(entered)

    def has_room(self) -> bool:
        """Whether any caller could make another call."""
        return self.shares.has_room_for_anyone()
