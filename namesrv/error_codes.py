"""The table of errors: what each reason is in both protocols, and when a retry helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import grpc

from namesrv.core.errors import Reason, Refused, shutting_down
from namesrv_common.server.rpc_handlers import Failures

DOMAIN = "namesrv.dev"
"""Domain of all reasons."""


class ResponseCode(IntEnum):
    """The answers of a name server (RocketMQ: ResponseCode and RemotingSysResponseCode)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    QUERY_NOT_FOUND = 22
    GO_AWAY = 1500


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """How an error of one reason travels."""

    grpc: grpc.StatusCode
    rocketmq: ResponseCode = ResponseCode.SYSTEM_ERROR
    """A client of RocketMQ drops what it knows of a topic on TOPIC_NOT_EXIST and no other code."""
    retry_after_seconds: float | None = None
    """Seconds after which a retry helps, or None. Short where another name server may answer: a client that balances
    over several waits this long before it asks the next one."""
    words: str = ""
    """RocketMQ's own words, where its tools or its operators look for them. They come before the text."""


_Code = grpc.StatusCode

ERROR_CODES: Mapping[Reason, ErrorCodes] = {
    Reason.MALFORMED_REQUEST: ErrorCodes(_Code.INVALID_ARGUMENT),
    Reason.INVALID_FIELD: ErrorCodes(_Code.INVALID_ARGUMENT),
    Reason.LIMIT_EXCEEDED: ErrorCodes(_Code.RESOURCE_EXHAUSTED),
    Reason.TOPIC_NOT_FOUND: ErrorCodes(_Code.NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST),
    Reason.BROKER_NOT_REGISTERED: ErrorCodes(_Code.NOT_FOUND),
    Reason.CHANNEL_GONE: ErrorCodes(_Code.FAILED_PRECONDITION),
    Reason.NEED_FULL_REGISTRATION: ErrorCodes(_Code.FAILED_PRECONDITION),
    Reason.REGISTRY_WARMING: ErrorCodes(_Code.UNAVAILABLE, retry_after_seconds=0.2, words="name server not ready"),
    Reason.SHUTTING_DOWN: ErrorCodes(_Code.UNAVAILABLE, retry_after_seconds=0.1),
    Reason.OVERLOADED: ErrorCodes(
        _Code.RESOURCE_EXHAUSTED,
        ResponseCode.SYSTEM_BUSY,
        retry_after_seconds=1.0,
        words="[OVERLOAD]system busy, start flow control for a while",
    ),
    Reason.NOT_IMPLEMENTED: ErrorCodes(_Code.UNIMPLEMENTED, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    Reason.INTERNAL_DEFECT: ErrorCodes(_Code.INTERNAL),
    Reason.REVISION_COMPACTED: ErrorCodes(_Code.OUT_OF_RANGE),
    Reason.REVISION_NOT_REACHED: ErrorCodes(_Code.OUT_OF_RANGE, retry_after_seconds=1.0),
    Reason.EPOCH_CHANGED: ErrorCodes(_Code.FAILED_PRECONDITION),
    Reason.SNAPSHOT_GONE: ErrorCodes(_Code.NOT_FOUND),
    Reason.SLOW_READER: ErrorCodes(_Code.RESOURCE_EXHAUSTED),
    Reason.CRC32_NOT_MATCH: ErrorCodes(_Code.DATA_LOSS, words="crc32 not match"),
    Reason.NO_DATA_DIR: ErrorCodes(_Code.FAILED_PRECONDITION),
    Reason.NOT_DURABLE: ErrorCodes(_Code.UNAVAILABLE),
    Reason.KV_NOT_FOUND: ErrorCodes(_Code.NOT_FOUND, ResponseCode.QUERY_NOT_FOUND),
    Reason.CONFLICT: ErrorCodes(_Code.ABORTED),
    Reason.CONFIG_KEY_DENIED: ErrorCodes(_Code.PERMISSION_DENIED, ResponseCode.NO_PERMISSION),
    Reason.STALE_STATE_VERSION: ErrorCodes(_Code.FAILED_PRECONDITION),
    Reason.NOT_AUTHENTICATED: ErrorCodes(_Code.UNAUTHENTICATED),
    Reason.NOT_PERMITTED: ErrorCodes(_Code.PERMISSION_DENIED),
    Reason.INTENT_NOT_FOUND: ErrorCodes(_Code.NOT_FOUND),
    Reason.PRODUCT_ENV_UNAVAILABLE: ErrorCodes(_Code.UNAVAILABLE, retry_after_seconds=1.0),
    Reason.WATCH_EXPIRED: ErrorCodes(_Code.UNAVAILABLE, retry_after_seconds=0.0),
    Reason.TOPICS_IN_USE: ErrorCodes(_Code.FAILED_PRECONDITION),
}

FAILURES = Failures(
    DOMAIN,
    codes={reason: codes.grpc for reason, codes in ERROR_CODES.items()},
    retry_after_seconds={
        reason: codes.retry_after_seconds
        for reason, codes in ERROR_CODES.items()
        if codes.retry_after_seconds is not None
    },
    defect_event="internal_defect",
    shutting_down=shutting_down,
    slow_reader=lambda stalled_seconds: Refused(
        Reason.SLOW_READER, f"the reader took nothing for {stalled_seconds:g} s and was cut"
    ),
)
"""What calls end with when something goes wrong."""
