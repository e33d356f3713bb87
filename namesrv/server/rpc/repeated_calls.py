"""Calls that come again and again, byte for byte, from the same caller, as the servicers see them.

An engine that knows such a call asks for its answer again, without a parse, a context and the checks that only look at
the bytes and at who sent them. Whatever can have changed since is looked at anew. Other engines pass over all of it.
"""

from __future__ import annotations

from collections.abc import Callable

Again = Callable[[], bytes | None]
"""Does all that the call asks for once more, and counts it, and returns the answer. None, with nothing done: the call
has to be looked at as a whole, because it may not end well. Never waits."""


def may_repeat(context: object, again: Again) -> None:
    """Says how the call that is answered well in this very step is answered when it comes again."""
    if hasattr(context, "may_repeat"):
        context.may_repeat(again)
