"""The native engine (pygrpc-native), with a mend for its stalled streams, and no task for calls that never wait.

Its version is pinned, because names with an underscore here are private there.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

import pygrpc_native.aio as native_aio  # not "from": the package's lazy attributes recurse
from pygrpc_native import EVENT_CANCEL, STREAM_CLOSED, STREAM_FULL

from groundwork.grpc_handlers import inline_calls

FIRST_PAUSE_SECONDS = 0.001
LONGEST_PAUSE_SECONDS = 0.25
"""A full stream is tried again after a pause that doubles between these two."""

CLOSE_SECONDS = 5.0
"""How long closing the listener may take after all calls have ended."""


class NativeServer(native_aio.Server):
    """A ``grpc.aio`` server whose HTTP/2 runs in Rust.

    In the package itself a full stream blocks a thread of the loop's default executor: as many stalled readers as that
    has threads starve every other stream and hang the shutdown. Here a full stream is tried again without a thread.
    """

    async def stop(self, grace: float | None = None) -> None:
        """Stops within the grace period, in seconds, and a bounded time to close the listener."""
        await asyncio.wait_for(super().stop(grace), (grace or 0.0) + CLOSE_SECONDS)

    def _on_events(self, events: list[tuple[Any, ...]]) -> None:
        for event in events:
            kind, call_id, method_id, payload, _, details = event
            if kind == EVENT_CANCEL or self._stopping or not inline_calls.is_marked(self._table[method_id][1]):
                super()._on_events([event])
                continue
            call = native_aio._Call(call_id, *self._table[method_id], *details)  # noqa: SLF001 - see above
            copy_context().run(inline_calls.run, self._run(call, payload))

    async def _send(self, call: Any, context: Any, response: Any) -> bool:
        front = self._front
        assert front is not None, "calls come only through the front"
        data = self._encode(call, context, response)
        if data is None:
            return False
        context._initial_sent = True  # noqa: SLF001 - what the method that this replaces does
        pause = FIRST_PAUSE_SECONDS
        while (sent := front.stream_try_send(call.call_id, data)) == STREAM_FULL:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return bool(sent != STREAM_CLOSED)
