"""Calls that are answered at once, in the callback that brings their request, without a task.

pyvoy makes a task for each request, and waiting for a request's body takes one future more. Both together cost as much
as all else that a lookup does here. So the application gives pyvoy nothing to run for such a call, and the body is
asked for at once. A request that is not plain, or is not complete soon, gets its task after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from itertools import chain
from typing import Any, cast

from groundwork.grpc_handlers import inline_calls
from namesrv.config.limits import MAX_METADATA_BYTES
from namesrv.server.engines.envoy.answering import CONTENT_TYPE, Handler, conclude
from namesrv.server.engines.envoy.call import Call, Event, Receive, Send
from namesrv.server.engines.envoy.headers import HEADER_OVERHEAD_BYTES, Headers, timeout_seconds
from namesrv.server.engines.envoy.messages import RefusedRequest, whole_message

SOON_SECONDS = 0.1
"""A request that has not come by then gets a task, and its deadline counts from there. Calls with shorter deadlines get
one at once.
"""

Scope = Mapping[str, Any]
InTask = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class NothingToRun:
    """A stand-in for what pyvoy runs, and for its task, where a call needs no task."""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Does nothing: pyvoy would only check whether the task has failed."""


NOTHING_TO_RUN = cast("Coroutine[Any, Any, None]", NothingToRun())


def task_factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
    """The task factory of the event loop: the usual one, except for a call that needs no task."""
    return coroutine if coroutine is NOTHING_TO_RUN else asyncio.Task(coroutine, loop=loop, **options)


class PromptCalls:
    """Answers calls that never wait."""

    def __init__(self, in_task: InTask) -> None:
        """Makes it, with what answers a call in a task of its own."""
        self._in_task = in_task
        self._awaited: dict[asyncio.Future[Event], tuple[Handler, Scope, Receive, Send]] = {}
        """Calls by the futures of their requests."""
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
        """Begins a call that is plain."""
        asked: Any = receive()
        self._awaited[asked] = handler, scope, receive, send
        asked.add_done_callback(self._answer)

    def _answer(self, asked: asyncio.Future[Event]) -> None:
        if (awaited := self._awaited.pop(asked, None)) is None:
            return  # it has a task
        handler, scope, receive, send = awaited
        event = asked.result()
        if event["type"] == "http.disconnect":
            return
        message = None if event.get("more_body") else whole_message(event["body"])
        if message is None:
            self._give_task(asked, scope, receive, send)
            return
        call = Call(scope, receive, send, None)
        call.handler = handler
        answering: Any = handler.unary_unary
        decode = handler.request_deserializer
        inline_calls.run(conclude(call, answering(message if decode is None else decode(message), call), scope["path"]))

    def _give_task(self, asked: asyncio.Future[Event], scope: Scope, receive: Receive, send: Send) -> None:
        first = [asked]

        def receive_from_first() -> Awaitable[Event]:
            return first.pop() if first else receive()

        task = asyncio.create_task(self._in_task(scope, receive_from_first, send))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def give_tasks(self, calls: Iterable[asyncio.Future[Event]] | None = None) -> None:
        """Gives tasks to calls, or to all, whose requests have not come yet."""
        for asked in list(self._awaited if calls is None else calls):
            if (awaited := self._awaited.pop(asked, None)) is not None:
                self._give_task(asked, *awaited[1:])

    async def run(self) -> None:
        """Gives tasks to calls whose requests do not come soon, until cancelled."""
        while True:
            old = list(self._awaited)
            await asyncio.sleep(SOON_SECONDS)
            self.give_tasks(old)


def is_plain(headers: Headers) -> bool:
    """Whether a request is certainly a call whose headers need no refusal and whose deadline needs no watching."""
    fields = dict(headers)
    # An upper bound that is quick to compute: it also counts the headers that Envoy added.
    size = len(b"".join(chain.from_iterable(headers))) + HEADER_OVERHEAD_BYTES * len(headers)
    return (
        size < MAX_METADATA_BYTES
        and fields.get(b"te") == b"trailers"
        and fields.get(b"content-type", b"").startswith(CONTENT_TYPE)
        and fields.get(b"grpc-encoding", b"identity") == b"identity"
        and _leaves_time(fields.get(b"grpc-timeout"))
    )


def _leaves_time(timeout: bytes | None) -> bool:
    try:
        return timeout is None or timeout_seconds(timeout) > SOON_SECONDS
    except RefusedRequest:
        return False
