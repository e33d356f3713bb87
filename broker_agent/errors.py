"""The agent's exceptions, and the table of the reasons for which it refuses calls."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Self, TypeVar

import grpc

from namesrv_common.errors import Refused, invalid_field
from namesrv_common.grpc_errors import RichError
from namesrv_common.server.rpc_handlers import Failures

ResultT = TypeVar("ResultT")


class StartError(Exception):
    """The agent cannot start as asked. The message is one line for the operator."""


class NameServerError(Exception):
    """A call to a name server failed, or could not be made in time."""

    def __init__(self, rich: RichError) -> None:
        super().__init__(str(rich))
        self.rich = rich


_Code = grpc.StatusCode


class Reason(StrEnum):
    """The reasons of the contract, each with its gRPC code: ``broker_agent_api.v1.ErrorReason`` explains them."""

    code: grpc.StatusCode

    def __new__(cls, value: str, code: grpc.StatusCode) -> Self:
        reason = str.__new__(cls, value)
        reason._value_, reason.code = value, code
        return reason

    MALFORMED_REQUEST = "MALFORMED_REQUEST", _Code.INVALID_ARGUMENT
    INVALID_FIELD = "INVALID_FIELD", _Code.INVALID_ARGUMENT
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED", _Code.RESOURCE_EXHAUSTED
    INTERNAL_DEFECT = "INTERNAL_DEFECT", _Code.INTERNAL
    TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND", _Code.NOT_FOUND
    SYSTEM_TOPIC = "SYSTEM_TOPIC", _Code.FAILED_PRECONDITION
    TOPICS_FOLLOWED = "TOPICS_FOLLOWED", _Code.FAILED_PRECONDITION
    NOT_MASTER = "NOT_MASTER", _Code.FAILED_PRECONDITION
    TOPICS_FILE_CHANGED = "TOPICS_FILE_CHANGED", _Code.FAILED_PRECONDITION
    NOT_DURABLE = "NOT_DURABLE", _Code.UNAVAILABLE
    CHANNEL_GONE = "CHANNEL_GONE", _Code.FAILED_PRECONDITION
    CONSUMER_GROUP_NOT_FOUND = "CONSUMER_GROUP_NOT_FOUND", _Code.NOT_FOUND
    PRODUCER_GROUP_NOT_FOUND = "PRODUCER_GROUP_NOT_FOUND", _Code.NOT_FOUND
    SLOW_READER = "SLOW_READER", _Code.RESOURCE_EXHAUSTED
    SHUTTING_DOWN = "SHUTTING_DOWN", _Code.UNAVAILABLE
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED", _Code.UNAUTHENTICATED
    NOT_PERMITTED = "NOT_PERMITTED", _Code.PERMISSION_DENIED


def checked(field: str, check: Callable[..., ResultT], *values: object) -> ResultT:
    """Returns what a check of a field returns. Raises INVALID_FIELD instead of its ValueError."""
    try:
        return check(*values)
    except ValueError as error:
        raise invalid_field(field, str(error)) from error


def topic_not_found(topic: str) -> Refused:
    """The broker has no such topic."""
    return Refused(Reason.TOPIC_NOT_FOUND, f"the broker has no topic {topic!r}", topic=topic)


def topics_followed() -> Refused:
    """The topics belong to the broker, which alone changes them."""
    text = "topics.json belongs to the broker and is only followed here: change topics at the broker"
    return Refused(Reason.TOPICS_FOLLOWED, text)


def slow_reader() -> Refused:
    """The reader of a stream takes too little."""
    text = "this stream is read too slowly: open another; over a client channel, send a heartbeat"
    return Refused(Reason.SLOW_READER, text)


def shutting_down() -> Refused:
    """The agent is at its end."""
    return Refused(Reason.SHUTTING_DOWN, "the agent is shutting down")


# The table of errors, for both listeners of the agent.

FAILURES = Failures(
    domain="agent.namesrv.dev",
    codes={reason: reason.code for reason in Reason},
    retry_after_seconds={Reason.NOT_DURABLE: 1.0, Reason.SHUTTING_DOWN: 1.0},
    defect_event="defect",
    shutting_down=shutting_down,
    slow_reader=lambda _seconds: slow_reader(),
)
"""What calls to the agent end with, on either listener, when something goes wrong."""
