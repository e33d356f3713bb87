"""AdminService: what operators call."""

from __future__ import annotations

from typing import NamedTuple, Self

from namesrv.core.registrations import RouteInfoManager
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.background.watch_streams import WatchStreams
from namesrv.server.services.admin.address_claims import AddressClaimChanges, AddressClaimQueries
from namesrv.server.services.admin.audit import AuditCalls
from namesrv.server.services.admin.config import ConfigChanges, ConfigQueries
from namesrv.server.services.admin.explain import ExplainCalls
from namesrv.server.services.admin.intent_pages import IntentQueries
from namesrv.server.services.admin.intents import IntentChanges
from namesrv.server.services.admin.kv_config import KvConfigChanges, KvConfigQueries
from namesrv.server.services.admin.watcher_list import WatcherListCalls
from namesrv.server.stores.config_store import ConfigStore
from namesrv.server.stores.durable_routes import DurableRoutes


class AdminQueries(NamedTuple):
    """Calls of the service that only read, by subject: a copy answers them, too."""

    kv_config: KvConfigQueries
    config: ConfigQueries
    intents: IntentQueries
    audit: AuditCalls
    explain: ExplainCalls
    watchers: WatcherListCalls
    address_claims: AddressClaimQueries

    @classmethod
    def of(
        cls, manager: RouteInfoManager, config: ConfigStore, watchers: WatchStreams, *, started_at_millis: int
    ) -> Self:
        """Makes it of what a name server, or a copy of one, consists of."""
        return cls(
            KvConfigQueries(manager),
            ConfigQueries(manager, config),
            IntentQueries(manager),
            AuditCalls(manager),
            ExplainCalls(manager, started_at_millis),
            WatcherListCalls(manager, watchers),
            AddressClaimQueries(manager),
        )


class AdminChanges(NamedTuple):
    """Calls of the service that change something, by subject: the owner of the tables answers them."""

    kv_config: KvConfigChanges
    config: ConfigChanges
    intents: IntentChanges
    address_claims: AddressClaimChanges

    @classmethod
    def of(cls, manager: RouteInfoManager, writer: TableWriter, durable: DurableRoutes, config: ConfigStore) -> Self:
        """Makes it of what a name server consists of."""
        return cls(
            KvConfigChanges(manager, durable.kv_config),
            ConfigChanges(manager, config),
            IntentChanges(manager, writer, durable.intents),
            AddressClaimChanges(manager),
        )
