"""AdminService: what operators call."""

from __future__ import annotations

from namesrv.core.routes.route_info_manager import RouteInfoManager
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.services.admin.audit import AuditCalls
from namesrv.server.services.admin.config import ConfigCalls
from namesrv.server.services.admin.explain import ExplainCalls
from namesrv.server.services.admin.intents import IntentCalls
from namesrv.server.services.admin.kv_config import KvConfigCalls
from namesrv.server.services.admin.watcher_list import WatcherListCalls
from namesrv.server.stores.config_store import ConfigStore
from namesrv.server.stores.durable_routes import DurableRoutes


class AdminServicer(KvConfigCalls, ConfigCalls, IntentCalls, AuditCalls, ExplainCalls, WatcherListCalls):
    """All calls of the service, by subject in the classes that it is made of."""

    def __init__(
        self,
        manager: RouteInfoManager,
        writer: TableWriter,
        durable: DurableRoutes,
        config: ConfigStore,
        watchers: WatchStreams,
        *,
        started_at_millis: int,
    ) -> None:
        KvConfigCalls.__init__(self, manager, durable.kv_config)
        ConfigCalls.__init__(self, manager, config)
        IntentCalls.__init__(self, manager, writer, durable.intents)
        AuditCalls.__init__(self, manager)
        ExplainCalls.__init__(self, manager, started_at_millis)
        WatcherListCalls.__init__(self, manager, watchers)
