"""The calls of AdminService that read and change the KV configuration."""

from __future__ import annotations

from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.config import limits
from namesrv.core.changes import Cause
from namesrv.core.errors import InvalidField, KvNotFound, LimitExceeded
from namesrv.core.model import KvConfigTable, names_after
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.auth.callers import caller_of
from namesrv.server.rpc.handlers import Context
from namesrv.server.services import field_rules
from namesrv.server.services.paging import last_of_page_before, page_token
from namesrv.server.stores.kv_config_store import KvChange, KvConfigStore


class KvConfigQueries:
    """Entries are read from the tables."""

    def __init__(self, manager: RouteInfoManager) -> None:
        self._manager = manager

    async def GetKvConfig(  # noqa: N802 - calls have the names of the wire contract
        self, request: pb.GetKvConfigRequest, _context: Context
    ) -> pb.GetKvConfigResponse:
        """GET_KV_CONFIG, 101."""
        _check_names(request.namespace, request.key)
        value = self._manager.kv_config.get(request.namespace, request.key)
        if value is None:
            raise KvNotFound(request.namespace, request.key)
        return pb.GetKvConfigResponse(header=self._manager.header(), value=value)

    async def ListKvConfigs(  # noqa: N802
        self, request: pb.ListKvConfigsRequest, _context: Context
    ) -> pb.ListKvConfigsResponse:
        """GET_KVLIST_BY_NAMESPACE, 219."""
        namespace, size = (
            request.namespace,
            min(field_rules.page_size(request.page_size), limits.MAX_KV_PAGE_SIZE),
        )
        after = last_of_page_before(request.page_token)
        if not namespace:
            names = names_after(self._manager.kv_config.namespaces, after, size + 1)
            rows = [pb.KvConfig(namespace=name) for name in names[:size]]
        else:
            _check_kv_name("namespace", namespace)
            entries = self._manager.kv_config.entries(namespace)
            if not entries:
                raise KvNotFound(namespace)
            names = names_after(entries, after, size + 1)
            rows = [pb.KvConfig(namespace=namespace, key=key, value=entries[key]) for key in names[:size]]
        next_page_token = page_token(names[size - 1]) if len(names) > size else ""
        return pb.ListKvConfigsResponse(header=self._manager.header(), kv_configs=rows, next_page_token=next_page_token)


class KvConfigChanges:
    """Requests are checked and answered here; KvConfigStore makes changes durable and puts them in force."""

    def __init__(self, manager: RouteInfoManager, kv_config: KvConfigStore) -> None:
        self._manager = manager
        self._kv_config = kv_config

    async def PutKvConfig(  # noqa: N802
        self, request: pb.PutKvConfigRequest, context: Context
    ) -> pb.PutKvConfigResponse:
        """PUT_KV_CONFIG, 100."""
        namespace, key, value = request.namespace, request.key, request.value
        _check_names(namespace, key)
        if not request.HasField("value"):
            raise InvalidField("value", "is missing; it may be empty, but must be set")
        value_bytes = len(value.encode())
        if value_bytes > limits.MAX_KV_VALUE_BYTES:
            raise LimitExceeded("bytes of value", value_bytes, limits.MAX_KV_VALUE_BYTES)
        cause = None if request.validate_only else Cause("PutKvConfig", caller_of(context))
        before = await self._change(lambda table: table.with_value(namespace, key, value), cause)
        return pb.PutKvConfigResponse(header=self._manager.header(), previous_value=before.get(namespace, key))

    async def DeleteKvConfig(  # noqa: N802
        self, request: pb.DeleteKvConfigRequest, context: Context
    ) -> pb.DeleteKvConfigResponse:
        """DELETE_KV_CONFIG, 102."""
        namespace, key = request.namespace, request.key
        _check_names(namespace, key)
        cause = None if request.validate_only else Cause("DeleteKvConfig", caller_of(context))
        before = await self._change(lambda table: table.without(namespace, key), cause)
        removed = before.get(namespace, key) is not None
        return pb.DeleteKvConfigResponse(header=self._manager.header(), removed=removed)

    async def _change(self, change: KvChange, cause: Cause | None) -> KvConfigTable:
        """Applies a change, or without a cause only says what it would be applied to; returns the table before it."""
        return self._kv_config.preview(change) if cause is None else await self._kv_config.apply(change, cause)


def _check_names(namespace: str, key: str) -> None:
    _check_kv_name("namespace", namespace)
    _check_kv_name("key", key)


def _check_kv_name(field: str, name: str) -> None:
    """Checks a namespace or key of the KV configuration; like RocketMQ, allows all characters. Raises InvalidField."""
    if not name:
        raise InvalidField(field, "is empty")
    length = len(name.encode())
    if length > limits.MAX_KV_NAME_BYTES:
        raise InvalidField(field, f"has {length} bytes, at most {limits.MAX_KV_NAME_BYTES}")
