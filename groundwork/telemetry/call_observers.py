"""Observers of the calls that a server answers: metrics and traces, on listeners of any engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import grpc

Metadata = Iterable[tuple[str, str | bytes]]


class MethodObserver(Protocol):
    """Watches one call of the contract. Neither method may block or raise."""

    def started(self, metadata: Callable[[], Metadata | None]) -> Any:
        """A call began, and its caller sent this metadata. Returns what ``ended`` is to be given."""

    def ended(self, code: grpc.StatusCode, started: Any) -> None:
        """A call ended."""


class CallObserver(Protocol):
    """Watches the calls of a server."""

    def of(self, method: str, *, streams: bool) -> MethodObserver | None:
        """The observer of one call of the contract, ``package.Service/Method``; None: there is none."""


def observed(
    handle: Callable[[Any, Any], Awaitable[Any]],
    observers: Sequence[CallObserver],
    method: str,
    *,
    streams: bool,
    code_of: Callable[[BaseException | None], grpc.StatusCode],
) -> Callable[[Any, Any], Awaitable[Any]]:
    """An asyncio handler that is watched; the handler itself if nobody watches it.

    Args:
        handle: Answers the call; it ends an unsuccessful one with ``context.abort``.
        observers: Those who may want to watch.
        method: The call.
        streams: Whether it answers with a stream.
        code_of: The code that the handler ended a call with because of an error.
    """
    for observer in observers:
        of_method = observer.of(method, streams=streams)
        if of_method is not None:
            handle = _observed_by(handle, of_method, code_of)
    return handle


def _observed_by(
    handle: Callable[[Any, Any], Awaitable[Any]],
    of_method: MethodObserver,
    code_of: Callable[[BaseException | None], grpc.StatusCode],
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def observe(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        started, code = of_method.started(context.invocation_metadata), grpc.StatusCode.UNKNOWN
        try:
            answer = await handle(request, context)
            code = grpc.StatusCode.OK
            return answer  # noqa: TRY300 - it is the try that matters
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException as error:
            code = code_of(error.__context__)
            raise
        finally:
            of_method.ended(code, started)

    return observe
