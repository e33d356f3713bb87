"""AdminService: what operators call."""

from __future__ import annotations

from namesrv.core.route_info_manager import RouteInfoManager
from namesrv.server.audit_calls import AuditCalls
from namesrv.server.config_calls import ConfigCalls
from namesrv.server.config_store import ConfigStore
from namesrv.server.durable_routes import DurableRoutes
from namesrv.server.explain_calls import ExplainCalls
from namesrv.server.intent_calls import IntentCalls
from namesrv.server.kv_config_calls import KvConfigCalls
from namesrv.server.table_writer import TableWriter
from namesrv.server.watcher_list_calls import WatcherListCalls
from namesrv.server.watchers import Watchers


class AdminServicer(KvConfigCalls, ConfigCalls, IntentCalls, AuditCalls, ExplainCalls, WatcherListCalls):
    """All calls of the service, by subject in the classes that it is made of."""

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        durable: DurableRoutes,
        config: ConfigStore,
        watchers: Watchers,
        *,
        started_at_millis: int,
    ) -> None:
        KvConfigCalls.__init__(self, manager, durable.kv_config)
        ConfigCalls.__init__(self, manager, config)
        IntentCalls.__init__(self, manager, writer, durable.intents)
        AuditCalls.__init__(self, manager)
        ExplainCalls.__init__(self, manager, started_at_millis)
        WatcherListCalls.__init__(self, manager, watchers)
