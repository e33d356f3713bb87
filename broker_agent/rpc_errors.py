"""Errors of calls to the agent, with a code and a reason, and the interceptor that answers them (AIP-193)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn, cast

import grpc
import structlog
from google.protobuf.message import DecodeError

from broker_agent.errors import AgentError
from groundwork.rich_errors import FieldViolation, RichError

DOMAIN = "broker-agent"
"""Domain of all reasons."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class CallRefused(AgentError):
    """Base of the errors that a caller gets. A subclass says which code and reason; nothing has been changed."""

    code: ClassVar[grpc.StatusCode]
    reason: ClassVar[str]
    """A name of the contract's ErrorReason, without its prefix."""
    retry_after_seconds: ClassVar[float | None] = None
    """When trying again may help; None if it does not."""

    def __init__(
        self, message: str, metadata: Mapping[str, str] | None = None, violations: tuple[FieldViolation, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = metadata or {}
        self.violations = violations

    def rich(self) -> RichError:
        """The error as it travels."""
        return RichError(
            self.code,
            self.message,
            reason=self.reason,
            domain=DOMAIN,
            metadata=self.metadata,
            violations=self.violations,
            retry_after_seconds=self.retry_after_seconds,
        )


class MalformedRequest(CallRefused):
    """The bytes are no message of the call's type."""

    code, reason = grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST"

    def __init__(self, message_name: str) -> None:
        """Names the message that was expected."""
        super().__init__(f"the request is not a {message_name}", {"message": message_name})


class InvalidField(CallRefused):
    """A field breaks its rule."""

    code, reason = grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"

    def __init__(self, field: str, problem: str) -> None:
        """Names the field's path in the request, and the value's problem with the rule."""
        super().__init__(f"{field} {problem}", {"field": field}, (FieldViolation(field, problem),))


class LimitExceeded(CallRefused):
    """Something is larger or more than a limit."""

    code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED"

    def __init__(self, name: str, value: int, limit: int) -> None:
        metadata = {"name": name, "value": str(value), "limit": str(limit)}
        super().__init__(f"{name}: {value}, at most {limit}", metadata)


class InternalDefect(CallRefused):
    """A defect of ours. The caller gets an id that the log has, too, and nothing of the exception's text."""

    code, reason = grpc.StatusCode.INTERNAL, "INTERNAL_DEFECT"

    def __init__(self, error_id: str) -> None:
        super().__init__(f"defect of the agent; its log has the details under id {error_id}", {"error_id": error_id})


class TopicNotFound(CallRefused):
    """The broker has no such topic."""

    code, reason = grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND"

    def __init__(self, topic: str) -> None:
        super().__init__(f"the broker has no topic {topic!r}", {"topic": topic})


class SystemTopic(CallRefused):
    """The broker needs this topic itself."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "SYSTEM_TOPIC"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is a system topic: it is not changed or deleted by call", {"topic": topic})


class TopicsFollowed(CallRefused):
    """The topics are the broker's own business."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "TOPICS_FOLLOWED"

    def __init__(self) -> None:
        super().__init__("topics.json belongs to the broker and is only followed here: change topics at the broker")


class NotMaster(CallRefused):
    """A slave's topics are its master's."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "NOT_MASTER"

    def __init__(self) -> None:
        super().__init__("this broker is a slave and copies its topics: change topics at the master")


class TopicsFileChanged(CallRefused):
    """Somebody else writes the file that the agent owns."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "TOPICS_FILE_CHANGED"

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file} was written by another process although the agent owns it: restart the agent to read it, or let "
            "it follow the file"
        )


class NotDurable(CallRefused):
    """The disk did not take a change, so it was not made."""

    code, reason, retry_after_seconds = grpc.StatusCode.UNAVAILABLE, "NOT_DURABLE", 1.0


class TopicTableChanged(CallRefused):
    """The table of the page before is gone."""

    code, reason = grpc.StatusCode.ABORTED, "TOPIC_TABLE_CHANGED"

    def __init__(self) -> None:
        super().__init__("the topic table has changed since the page before: start again with the first page")


class ErrorAnswers(grpc.ServerInterceptor):  # type: ignore[type-arg] # only generic in its stubs
    """Answers whatever a servicer raises: CallRefused as it says, everything else as a defect.

    Requests that come alone are parsed here, because gRPC answers bytes that are no message with INTERNAL.
    """

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
            wrap(behavior, parse, handler_call_details.method),
            request_deserializer=deserializer,
            response_serializer=handler.response_serializer,
        )
        return wrapped


def _answering(behavior: Callable[..., Any], parse: Callable[[bytes], Any] | None, method: str) -> Callable[..., Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return behavior(_parsed(parse, request), context)
        except Exception as error:  # noqa: BLE001 - the last place that can answer it
            _abort(error, context, method)

    return answer


def _streaming(behavior: Callable[..., Any], parse: Callable[[bytes], Any] | None, method: str) -> Callable[..., Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
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


def _abort(error: Exception, context: grpc.ServicerContext, method: str) -> NoReturn:
    if not isinstance(error, CallRefused):
        if cast("Any", context).code() is not None:  # not in the stubs
            raise error  # the servicer has ended the call itself
        defect = InternalDefect(secrets.token_hex(4))
        _log.error("defect", error_id=defect.metadata["error_id"], method=method, exc_info=error)
        error = defect
    rich = error.rich()
    context.abort_with_status(rich.status())
