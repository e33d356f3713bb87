"""Observers of the calls that a synchronous listener answers (``groundwork.telemetry.call_observers``: asyncio)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc

from groundwork.telemetry.call_observers import CallObserver, MethodObserver


class ObservedAnswers(grpc.ServerInterceptor):  # type: ignore[type-arg] # only generic in its stubs
    """Must come before the interceptor that turns errors into answers.

    Leaves streams and the services of others alone.
    """

    def __init__(self, observers: Sequence[CallObserver], package: str) -> None:
        """Watches the calls of a package's services."""
        self._observers = observers
        self._package = f"/{package}."
        self._of_methods: dict[str, list[MethodObserver]] = {}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the call's handler. Called by gRPC."""
        handler: Any = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.unary_unary is None or not method.startswith(self._package):
            return cast("grpc.RpcMethodHandler[Any, Any] | None", handler)
        return grpc.unary_unary_rpc_method_handler(
            _watched(handler.unary_unary, self._of(method.removeprefix("/"))),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _of(self, method: str) -> list[MethodObserver]:
        """Made once for each call of the contract."""
        if method not in self._of_methods:
            found = [observer.of(method, streams=False) for observer in self._observers]
            self._of_methods[method] = [of_method for of_method in found if of_method is not None]
        return self._of_methods[method]


def _watched(answer: Callable[[Any, Any], Any], observers: Sequence[MethodObserver]) -> Callable[[Any, Any], Any]:
    def watched(request: Any, context: grpc.ServicerContext) -> Any:
        started = [observer.started(context.invocation_metadata) for observer in observers]
        code = grpc.StatusCode.OK
        try:
            return answer(request, context)
        except BaseException:
            code = cast("Any", context).code() or grpc.StatusCode.UNKNOWN  # not in the stubs
            raise
        finally:
            for observer, begun in zip(observers, started, strict=True):
                observer.ended(code, begun)

    return watched
