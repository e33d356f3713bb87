"""Inline calls: answered without waiting for anything, which spares an engine a task for each of them.

A task costs as much as a route's lookup. ``handlers.py`` marks the handlers of such calls. An engine that wants
to runs them to their end in the callback that brought the request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import grpc

_MARK = "answers_at_once"

HandleT = TypeVar("HandleT")
ResultT = TypeVar("ResultT")


class Waited(RuntimeError):
    """What was to be answered at once waits for something: a defect."""


def marked(handle: HandleT, has_room: Callable[[], bool]) -> HandleT:
    """The same handler of a unary call, of which engines know now that it never waits, and when it admits anyone."""
    setattr(handle, _MARK, has_room)
    return handle


def is_marked(handler: grpc.RpcMethodHandler[Any, Any]) -> bool:
    """Whether the handler of a call never waits."""
    return hasattr(handler.unary_unary, _MARK)


def room_of(handler: grpc.RpcMethodHandler[Any, Any]) -> Callable[[], bool]:
    """Tells whether the handler of a call that never waits would refuse nobody now for want of room."""
    has_room: Callable[[], bool] = getattr(handler.unary_unary, _MARK)
    return has_room


def run(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Runs a coroutine that does not wait to its end, without a task. Its result, or what it raises.

    Raises:
        Waited: It waits. It was told so itself, and may have answered before it ended.
    """
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: ResultT = ended.value
        return result
    return _stopped(coroutine)


def _stopped(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    try:
        coroutine.throw(Waited("a call that is answered at once waits for something"))
    except StopIteration as ended:
        result: ResultT = ended.value
        return result
    coroutine.close()
    raise Waited("a call that is answered at once goes on waiting")
