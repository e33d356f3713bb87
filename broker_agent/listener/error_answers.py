"""The interceptor that answers what servicers of the agent's synchronous listener raise (AIP-193)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError

from broker_agent.auth.admission import AgentAdmission
from broker_agent.error_codes import FAILURES
from broker_agent.rpc_errors import CallRefused, MalformedRequest


class ErrorAnswers(grpc.ServerInterceptor):  # type: ignore[type-arg] # only generic in its stubs
    """Answers every error of a servicer: CallRefused with its code and reason, all others as a defect.

    Requests of unary calls are parsed here, because gRPC answers bytes that are not a message with INTERNAL, and only
    those of callers that are let in.
    """

    def __init__(self, admission: AgentAdmission | None = None) -> None:
        """Takes who may call; None: everybody."""
        self._admission = admission or AgentAdmission()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the call's handler. Called by gRPC."""
        handler: Any = continuation(handler_call_details)
        if handler is None:
            return None
        parse = None if handler.request_streaming else handler.request_deserializer
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        wrap = _streaming if handler.response_streaming else _answering
        deserializer = handler.request_deserializer if parse is None else None
        wrapped: grpc.RpcMethodHandler[Any, Any] = make(
            wrap(behavior, parse, handler_call_details.method, self._admission),
            request_deserializer=deserializer,
            response_serializer=handler.response_serializer,
        )
        return wrapped


def _answering(
    behavior: Callable[..., Any], parse: Callable[[bytes], Any] | None, method: str, admission: AgentAdmission
) -> Callable[..., Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            admission.check(_full_name(method), context)
            return behavior(_parsed(parse, request), context)
        except Exception as error:  # noqa: BLE001 - the last place that can answer it
            _abort(error, context, method)

    return answer


def _streaming(
    behavior: Callable[..., Any], parse: Callable[[bytes], Any] | None, method: str, admission: AgentAdmission
) -> Callable[..., Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            admission.check(_full_name(method), context)
            yield from behavior(_parsed(parse, request), context)
        except Exception as error:  # noqa: BLE001 - the last place that can answer it
            _abort(error, context, method)

    return answer


def _parsed(parse: Any, request: Any) -> Any:
    """The request of a call. ``parse`` is ``FromString`` of its message's class; None: it has been parsed."""
    if parse is None:
        return request
    try:
        return parse(request)
    except DecodeError as error:
        raise MalformedRequest(parse.__self__.DESCRIPTOR.full_name) from error


def _full_name(method: str) -> str:
    """A call's name as descriptors have it, out of its path."""
    return method.removeprefix("/").replace("/", ".")


def _abort(error: Exception, context: grpc.ServicerContext, method: str) -> NoReturn:
    if not isinstance(error, CallRefused) and cast("Any", context).code() is not None:  # not in the stubs
        raise error  # the servicer has ended the call itself
    context.abort_with_status(FAILURES.answer(error, _full_name(method)).status())
