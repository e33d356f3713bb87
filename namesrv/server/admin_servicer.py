"""AdminService: what operators call."""

from __future__ import annotations

from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.server.audit_calls import AuditCalls
from namesrv.server.config_calls import ConfigCalls
from namesrv.server.config_store import ConfigStore
from namesrv.server.kv_config_calls import KvConfigCalls
from namesrv.server.kv_config_store import KvConfigStore


class AdminServicer(KvConfigCalls, ConfigCalls, AuditCalls):
    """All calls of the service, by subject in the classes that it is made of."""

    def __init__(self, manager: RouteInfoManager, kv_config: KvConfigStore, config: ConfigStore) -> None:
        KvConfigCalls.__init__(self, manager, kv_config)
        ConfigCalls.__init__(self, manager, config)
        AuditCalls.__init__(self, manager)
