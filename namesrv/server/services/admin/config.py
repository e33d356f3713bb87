"""The calls of AdminService that read and change the settings."""

from __future__ import annotations

import structlog
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv.config.keys import CONFIG_KEYS, Effect
from namesrv.config.settings import NamesrvSettings
from namesrv.core.changes import Cause
from namesrv.core.errors import ConfigKeyDenied, InvalidField, LimitExceeded
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.auth.callers import caller_of
from namesrv.server.rpc.handlers import Context
from namesrv.server.stores.config_store import ConfigStore

MAX_CONFIG_VALUES = 100
"""Most settings in one update: more than there are. Each of them is checked on one step of the event loop."""

_log = structlog.get_logger(__name__)


class ConfigQueries:
    """Settings are kept by ConfigStore."""

    def __init__(self, manager: RouteInfoManager, store: ConfigStore) -> None:
        self._manager = manager
        self._config = store

    async def GetNamesrvConfig(  # noqa: N802 - calls have the names of the wire contract
        self, _request: pb.GetNamesrvConfigRequest, _context: Context
    ) -> pb.GetNamesrvConfigResponse:
        """GET_NAMESRV_CONFIG, 319."""
        entries = [_entry(name, self._config.pending(name), self._config.settings) for name in CONFIG_KEYS]
        return pb.GetNamesrvConfigResponse(header=self._manager.header(), entries=entries)


class ConfigChanges:
    """Settings are checked and kept by ConfigStore; the answers are made here."""

    def __init__(self, manager: RouteInfoManager, store: ConfigStore) -> None:
        self._manager = manager
        self._config = store

    async def UpdateNamesrvConfig(  # noqa: N802
        self, request: pb.UpdateNamesrvConfigRequest, context: Context
    ) -> pb.UpdateNamesrvConfigResponse:
        """UPDATE_NAMESRV_CONFIG, 318. RocketMQ passes over unknown keys and over numbers that are none."""
        if not request.values:
            raise InvalidField("values", "is empty; name at least one setting")
        if len(request.values) > MAX_CONFIG_VALUES:
            raise LimitExceeded("settings of one update", len(request.values), MAX_CONFIG_VALUES)
        values, caller = dict(request.values), caller_of(context)
        try:
            if request.validate_only:
                rows = self._config.preview(values)
            else:
                rows = await self._config.change(values, Cause("UpdateNamesrvConfig", caller))
        except ConfigKeyDenied as error:
            _log.warning("config_key_denied", key=error.metadata["key"], caller=caller)
            raise
        entries = [_entry(row.key, row.value, self._config.settings) for row in rows]
        return pb.UpdateNamesrvConfigResponse(header=self._manager.header(), entries=entries)


def _entry(name: str, new_value: str, settings: NamesrvSettings) -> pb.ConfigEntry:
    """A setting that has, or would have from the next start on, a value."""
    key = CONFIG_KEYS[name]
    in_force = key.text_of(settings)
    needs_restart = key.effect is Effect.AT_RESTART
    return pb.ConfigEntry(
        key=name,
        value=in_force if needs_restart else new_value,
        updatable=key.effect is not Effect.NEVER,
        needs_restart=needs_restart,
        pending_value=new_value if needs_restart and new_value != in_force else None,
    )
