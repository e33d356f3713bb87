"""The agent's exceptions: one tree, and the gRPC code and reason of each refusal."""

from __future__ import annotations

from typing import cast

import grpc
from broker_agent_api.v1 import error_reason_pb2

from groundwork import errors as common
from groundwork.errors import (
    CallRefused,
    InternalDefect,
    InvalidField,
    LimitExceeded,
    MalformedRequest,
    NotAuthenticated,
    NotDurable,
    NotPermitted,
)
from groundwork.grpc_errors import ErrorTable, FailedCall, RichError
from groundwork.rpc_handlers import Failures

__all__ = [
    "CODES",
    "DOMAIN",
    "FAILURES",
    "RETRY_AFTER_SECONDS",
    "AgentError",
    "CallRefused",
    "ChannelGone",
    "ConsumerGroupNotFound",
    "InternalDefect",
    "InvalidField",
    "LimitExceeded",
    "MalformedRequest",
    "NameServerError",
    "NotAuthenticated",
    "NotDurable",
    "NotMaster",
    "NotPermitted",
    "ProducerGroupNotFound",
    "ShuttingDown",
    "SlowReader",
    "StartError",
    "SystemTopic",
    "TopicNotFound",
    "TopicTableChanged",
    "TopicsFileChanged",
    "TopicsFollowed",
]

# The agent's own exceptions: one tree.


class AgentError(Exception):
    """Base of the agent's own exceptions."""


class StartError(AgentError):
    """The agent cannot start as asked. The message is one line for the operator."""


class NameServerError(AgentError):
    """A call to a name server failed, or could not be made in time."""

    def __init__(self, rich: RichError) -> None:
        super().__init__(str(rich))
        self.rich = rich

    @classmethod
    def of_call(cls, error: grpc.RpcError) -> NameServerError:
        return cls(RichError.of(cast("FailedCall", error)))  # its stubs type the metadata as another sequence

    @classmethod
    def deadline_exceeded(cls, message: str) -> NameServerError:
        """The error of a call for which its caller had no time left."""
        return cls(RichError(grpc.StatusCode.DEADLINE_EXCEEDED, message))


# The tree of errors that a call to the agent can end with; ``CODES`` has the code and the reason of each.


class TopicNotFound(CallRefused):
    """The broker has no such topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"the broker has no topic {topic!r}", {"topic": topic})


class SystemTopic(CallRefused):
    """The broker needs this topic itself."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is a system topic: it is not changed or deleted by call", {"topic": topic})


class TopicsFollowed(CallRefused):
    """The topics belong to the broker, which alone changes them."""

    def __init__(self) -> None:
        super().__init__("topics.json belongs to the broker and is only followed here: change topics at the broker")


class NotMaster(CallRefused):
    """A slave's topics are its master's."""

    def __init__(self) -> None:
        super().__init__("this broker is a slave and copies its topics: change topics at the master")


class TopicsFileChanged(CallRefused):
    """Another process writes the file that the agent owns."""

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file} was written by another process although the agent owns it: restart the agent to read it, or let "
            "it follow the file"
        )


class TopicTableChanged(CallRefused):
    """The table of the page before is gone."""

    def __init__(self) -> None:
        super().__init__("the topic table has changed since the page before: start again with the first page")


class ChannelGone(CallRefused):
    """The client channel is unknown here, or its stream has ended."""

    def __init__(self) -> None:
        super().__init__(
            "channel_id names no open client channel of this agent: open another, send a heartbeat over it"
        )


class ConsumerGroupNotFound(CallRefused):
    """Nobody is in the consumer group."""

    def __init__(self, group: str) -> None:
        super().__init__(f"no client is in the consumer group {group!r}", {"consumer_group": group})


class ProducerGroupNotFound(CallRefused):
    """Nobody is in the producer group."""

    def __init__(self, group: str) -> None:
        super().__init__(f"no client is in the producer group {group!r}", {"producer_group": group})


class SlowReader(common.SlowReader):
    """The holder of a channel does not read."""

    def __init__(self) -> None:
        super().__init__("the holder of this channel does not read it: open another, send a heartbeat over it")


class ShuttingDown(CallRefused):
    """The agent is at its end."""

    def __init__(self) -> None:
        super().__init__("the agent is shutting down")


# The table of errors: the gRPC code and the reason of each, for both listeners of the agent.

DOMAIN = "broker-agent"
"""Domain of all reasons."""

_Reason = error_reason_pb2.ErrorReason
_Code = grpc.StatusCode

CODES: dict[type[CallRefused], tuple[grpc.StatusCode, _Reason]] = {
    MalformedRequest: (_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_MALFORMED_REQUEST),
    InvalidField: (_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_INVALID_FIELD),
    LimitExceeded: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_LIMIT_EXCEEDED),
    InternalDefect: (_Code.INTERNAL, _Reason.ERROR_REASON_INTERNAL_DEFECT),
    TopicNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_TOPIC_NOT_FOUND),
    SystemTopic: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_SYSTEM_TOPIC),
    TopicsFollowed: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_TOPICS_FOLLOWED),
    NotMaster: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_NOT_MASTER),
    TopicsFileChanged: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_TOPICS_FILE_CHANGED),
    NotDurable: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_NOT_DURABLE),
    TopicTableChanged: (_Code.ABORTED, _Reason.ERROR_REASON_TOPIC_TABLE_CHANGED),
    ChannelGone: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_CHANNEL_GONE),
    ConsumerGroupNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_CONSUMER_GROUP_NOT_FOUND),
    ProducerGroupNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_PRODUCER_GROUP_NOT_FOUND),
    SlowReader: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_SLOW_READER),
    NotAuthenticated: (_Code.UNAUTHENTICATED, _Reason.ERROR_REASON_NOT_AUTHENTICATED),
    NotPermitted: (_Code.PERMISSION_DENIED, _Reason.ERROR_REASON_NOT_PERMITTED),
    ShuttingDown: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_SHUTTING_DOWN),
}

RETRY_AFTER_SECONDS: dict[type[CallRefused], float] = {
    NotDurable: 1.0,
    ShuttingDown: 1.0,
}
"""After which time a retry helps, for the errors where one does."""

FAILURES = Failures(
    ErrorTable(DOMAIN, _Reason, CODES, RETRY_AFTER_SECONDS),
    defect_event="defect",
    shutting_down=ShuttingDown,
    slow_reader=lambda _seconds: SlowReader(),
)
"""What calls to the agent end with, on either listener, when something goes wrong."""
