"""The table of errors: the gRPC code and the reason of each, for both listeners of the agent."""

from __future__ import annotations

import grpc
from broker_agent_api.v1 import error_reason_pb2

from broker_agent import rpc_errors as errors
from groundwork.errors import CallRefused
from groundwork.grpc_errors import ErrorTable
from groundwork.rpc_handlers import Failures

DOMAIN = "broker-agent"
"""Domain of all reasons."""

_Reason = error_reason_pb2.ErrorReason
_Code = grpc.StatusCode

CODES: dict[type[CallRefused], tuple[grpc.StatusCode, _Reason]] = {
    errors.MalformedRequest: (_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_MALFORMED_REQUEST),
    errors.InvalidField: (_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_INVALID_FIELD),
    errors.LimitExceeded: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_LIMIT_EXCEEDED),
    errors.InternalDefect: (_Code.INTERNAL, _Reason.ERROR_REASON_INTERNAL_DEFECT),
    errors.TopicNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_TOPIC_NOT_FOUND),
    errors.SystemTopic: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_SYSTEM_TOPIC),
    errors.TopicsFollowed: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_TOPICS_FOLLOWED),
    errors.NotMaster: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_NOT_MASTER),
    errors.TopicsFileChanged: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_TOPICS_FILE_CHANGED),
    errors.NotDurable: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_NOT_DURABLE),
    errors.TopicTableChanged: (_Code.ABORTED, _Reason.ERROR_REASON_TOPIC_TABLE_CHANGED),
    errors.ChannelGone: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_CHANNEL_GONE),
    errors.ConsumerGroupNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_CONSUMER_GROUP_NOT_FOUND),
    errors.ProducerGroupNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_PRODUCER_GROUP_NOT_FOUND),
    errors.SlowReader: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_SLOW_READER),
    errors.NotAuthenticated: (_Code.UNAUTHENTICATED, _Reason.ERROR_REASON_NOT_AUTHENTICATED),
    errors.NotPermitted: (_Code.PERMISSION_DENIED, _Reason.ERROR_REASON_NOT_PERMITTED),
    errors.ShuttingDown: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_SHUTTING_DOWN),
}

RETRY_AFTER_SECONDS: dict[type[CallRefused], float] = {
    errors.NotDurable: 1.0,
    errors.ShuttingDown: 1.0,
}
"""After which time a retry helps, for the errors where one does."""

FAILURES = Failures(
    ErrorTable(DOMAIN, _Reason, CODES, RETRY_AFTER_SECONDS),
    defect_event="defect",
    shutting_down=errors.ShuttingDown,
    slow_reader=lambda _seconds: errors.SlowReader(),
)
"""What calls to the agent end with, on either listener, when something goes wrong."""
