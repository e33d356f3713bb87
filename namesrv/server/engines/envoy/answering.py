"""The check that an HTTP request is a call, and the run of its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, TypeAlias

import grpc
import structlog

from namesrv.config.limits import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES
from namesrv.server.engines.envoy.call import END, Call, Send
from namesrv.server.engines.envoy.headers import HEADER_OVERHEAD_BYTES, Headers, is_of_envoy, timeout_seconds
from namesrv.server.engines.envoy.messages import MessageReader, RefusedRequest

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

CONTENT_TYPE = b"application/grpc"
"""The prefix of calls' content types."""

_NOT_GRPC = 415

_log = structlog.get_logger(__name__)


def is_grpc(headers: Headers) -> bool:
    """Whether a request is a call of gRPC at all."""
    return any(name == b"content-type" and value.startswith(CONTENT_TYPE) for name, value in headers)


def refuse_other_protocol(send: Send) -> None:
    """Answers a request that is not a call."""
    send({"type": "http.response.start", "status": _NOT_GRPC, "headers": [(b"content-type", b"text/plain")]})
    send({"type": "http.response.body", "body": b"this server speaks gRPC only\n", "more_body": False})


async def run(call: Call, handler: Handler | None, scope: Mapping[str, Any]) -> None:
    """Answers a call, whatever its handler does. Raises nothing."""
    await conclude(call, _handled(call, handler, scope["headers"]), scope["path"])


async def conclude(call: Call, answering: Awaitable[Any], path: str) -> None:
    """Ends a call with what comes of answering it: the answer of a unary call, or an error. Raises nothing."""
    answer = None
    try:
        answer = await answering
    except RefusedRequest as refused:
        call.set_status(refused.code, refused.details)
    except grpc.aio.AbortError:
        pass  # the call knows its status
    except asyncio.CancelledError:
        if call.code() is grpc.StatusCode.OK:
            call.set_status(grpc.StatusCode.UNAVAILABLE, "the name server is shutting down")
    except Exception:  # noqa: BLE001 - it stays with its call, and none of its text gets out
        _log.exception("handler_failed", call=path)
        call.set_status(grpc.StatusCode.INTERNAL, "an internal error, which the server's log tells of")
    finally:
        call.finish(answer)


def _admitted(call: Call, handler: Handler | None, headers: Headers) -> Handler:
    """Looks at the headers. Returns the handler. Raises RefusedRequest."""
    size, trailers, encoding = 0, False, "identity"
    for name, value in headers:
        if not is_of_envoy(name):
            size += len(name) + len(value) + HEADER_OVERHEAD_BYTES
        if name == b"te":
            trailers = value == b"trailers"
        elif name == b"grpc-timeout":
            call.set_deadline(timeout_seconds(value))
        elif name == b"grpc-encoding":
            encoding = value.decode("latin-1")
    if size >= MAX_METADATA_BYTES:
        details = f"received metadata size exceeds limit ({size} vs. {MAX_METADATA_BYTES})"
        raise RefusedRequest(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
    if not trailers:
        raise RefusedRequest(grpc.StatusCode.INTERNAL, "the header te: trailers is missing")
    if handler is None:
        raise RefusedRequest(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    call.handler, call.reader = handler, MessageReader(MAX_MESSAGE_BYTES, encoding)
    return handler


async def _handled(call: Call, handler: Handler | None, headers: Headers) -> Any:
    """Runs the handler. Returns the answer of a unary call. Raises RefusedRequest, and what the handler raises."""
    handler = _admitted(call, handler, headers)
    request: Any = call.requests() if handler.request_streaming else await _only_request(call)
    if not handler.response_streaming:
        assert handler.unary_unary is not None, "no call of ours streams its request and answers once"
        answering_once: Any = handler.unary_unary  # the stubs know only the blocking kind
        return await answering_once(request, call)
    answering: Any = handler.stream_stream if handler.request_streaming else handler.unary_stream
    answers = answering(request, call)
    del request  # a stream may last long, and does not need the body any more
    if hasattr(answers, "__aiter__"):
        async for answer in answers:
            await call.write(answer)
    else:
        await answers
    return None


async def _only_request(call: Call) -> Any:
    request = await call.read()
    if request is END:
        raise RefusedRequest(grpc.StatusCode.INTERNAL, "the request holds no whole message")
    return request


def refuse(call: Call, code: grpc.StatusCode, details: str) -> None:
    """Ends a call before its handler sees it."""
    call.set_status(code, details)
    call.finish()
