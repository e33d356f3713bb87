"""Agreement of name servers, with each other and with the truth: by digests, and by the tables that were written."""

from __future__ import annotations

from namesrv_api.v1 import admin_service_pb2, route_service_pb2

from tests.faults.fleet.fleet import SERVERS, Fleet
from tests.support.programs.processes import Client

TIMEOUT = 3.0
READING_TIMEOUT = 20.0
"""Of calls that are asked once."""


def difference(fleet: Fleet) -> str:
    """What a name server has that it should not, or lacks; empty if all of them have exactly what is there."""
    digests = {}
    for server in SERVERS:
        with fleet.connect(server) as client:
            request = route_service_pb2.GetRouteDigestRequest(page_size=1_000)
            brokers = client.routes.GetRouteDigest(request, timeout=TIMEOUT).brokers
            status = client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=TIMEOUT)
        if status.unconfirmed_broker_count:
            return f"{server} has {status.unconfirmed_broker_count} unconfirmed brokers"
        digests[server] = {broker.broker_addr: broker for broker in brokers}
        there, wanted = set(digests[server]), {broker.addr for broker in fleet.brokers}
        if there != wanted:
            return f"{server} lacks {sorted(wanted - there)} and has {sorted(there - wanted)}"
        for broker in fleet.brokers:
            held, version = digests[server][broker.addr].data_version.counter, fleet.version_of(broker.group)
            if broker.broker_id == 0 and held != version:
                return f"{server} holds table {held} of {broker.name}, not {version}"
        if digests[server] != digests[SERVERS[0]]:
            return f"{server} and {SERVERS[0]} have different digests"
    return ""


def open_watches(client: Client) -> int:
    """How many streams of changes a name server has open."""
    request = admin_service_pb2.ListWatchersRequest(page_size=400)
    return len(client.admin.ListWatchers(request, timeout=READING_TIMEOUT).watchers)


def open_tasks(client: Client) -> int:
    """How many tasks a name server's event loop has, its own and those of calls."""
    return client.told_diagnostics().task_count
