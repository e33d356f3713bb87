"""The table of errors: the gRPC code and the reason of each, for the whole server."""

from __future__ import annotations

import grpc
from namesrv_api.v1 import error_reason_pb2

from groundwork.grpc_errors import ErrorTable
from groundwork.rpc_handlers import Failures
from namesrv.core import errors

DOMAIN = "namesrv"
"""Domain of all reasons."""

_Reason = error_reason_pb2.ErrorReason
_Code = grpc.StatusCode

CODES: dict[type[errors.CallRefused], tuple[grpc.StatusCode, _Reason]] = {
    errors.MalformedRequest: (_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_MALFORMED_REQUEST),
    errors.InvalidField: (_Code.INVALID_ARGUMENT, _Reason.ERROR_REASON_INVALID_FIELD),
    errors.LimitExceeded: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_LIMIT_EXCEEDED),
    errors.TopicNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_TOPIC_NOT_FOUND),
    errors.BrokerNotRegistered: (_Code.NOT_FOUND, _Reason.ERROR_REASON_BROKER_NOT_REGISTERED),
    errors.ChannelGone: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_CHANNEL_GONE),
    errors.NeedFullRegistration: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_NEED_FULL_REGISTRATION),
    errors.StaleStateVersion: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_STALE_STATE_VERSION),
    errors.RegistryWarming: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_REGISTRY_WARMING),
    errors.IntentNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_INTENT_NOT_FOUND),
    errors.SnapshotGone: (_Code.NOT_FOUND, _Reason.ERROR_REASON_SNAPSHOT_GONE),
    errors.EpochChanged: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_EPOCH_CHANGED),
    errors.RevisionCompacted: (_Code.OUT_OF_RANGE, _Reason.ERROR_REASON_REVISION_COMPACTED),
    errors.KvNotFound: (_Code.NOT_FOUND, _Reason.ERROR_REASON_KV_NOT_FOUND),
    errors.ConfigKeyDenied: (_Code.PERMISSION_DENIED, _Reason.ERROR_REASON_CONFIG_KEY_DENIED),
    errors.NotAuthenticated: (_Code.UNAUTHENTICATED, _Reason.ERROR_REASON_NOT_AUTHENTICATED),
    errors.NotPermitted: (_Code.PERMISSION_DENIED, _Reason.ERROR_REASON_NOT_PERMITTED),
    errors.NoDataDir: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_NO_DATA_DIR),
    errors.NotDurable: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_NOT_DURABLE),
    errors.Crc32NotMatch: (_Code.DATA_LOSS, _Reason.ERROR_REASON_CRC32_NOT_MATCH),
    errors.ProductEnvUnavailable: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_PRODUCT_ENV_UNAVAILABLE),
    errors.ReadOnlyReplica: (_Code.FAILED_PRECONDITION, _Reason.ERROR_REASON_READ_ONLY_REPLICA),
    errors.ShuttingDown: (_Code.UNAVAILABLE, _Reason.ERROR_REASON_SHUTTING_DOWN),
    errors.Overloaded: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_OVERLOADED),
    errors.SlowReader: (_Code.RESOURCE_EXHAUSTED, _Reason.ERROR_REASON_SLOW_READER),
    errors.NotImplementedYet: (_Code.UNIMPLEMENTED, _Reason.ERROR_REASON_NOT_IMPLEMENTED),
    errors.InternalDefect: (_Code.INTERNAL, _Reason.ERROR_REASON_INTERNAL_DEFECT),
}


RETRY_AFTER_SECONDS: dict[type[errors.CallRefused], float] = {
    errors.ShuttingDown: 1.0,
    errors.Overloaded: 1.0,
    errors.RegistryWarming: 1.0,
    errors.ProductEnvUnavailable: 1.0,
}
"""Where a retry helps: when."""


FAILURES = Failures(
    ErrorTable(DOMAIN, _Reason, CODES, RETRY_AFTER_SECONDS),
    defect_event="internal_defect",
    shutting_down=errors.ShuttingDown,
    slow_reader=errors.SlowReader,
)
"""What calls end with when something goes wrong."""
