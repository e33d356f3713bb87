"""Name servers are upgraded one by one, as docs/operating.md says, and no lookup through route_client notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from namesrv_common.endpoints import Endpoint
from route_client import AioRouteClient, KnownRoute, RouteClient, RouteClientError
from tests.support.programs.agents import Agent, asking_all_the_time, joined, topics_of
from tests.support.programs.processes import BIN, NamesrvProcess, ended, eventually

pytestmark = pytest.mark.slow

MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:11011"
TOPIC = "TopicTest"
ROUTE_SERVICE = "namesrv_api.v1.RouteService"


def is_ready(endpoint: Endpoint) -> bool:
    """Asks what a readiness probe asks."""
    command = [str(BIN / "namesrv"), "healthcheck", "--namesrv", str(endpoint), "--service", ROUTE_SERVICE]
    return ended(command).returncode == 0


def answer_of(lookup: Callable[[], KnownRoute]) -> object:
    """Addresses of the topic's brokers by id, a dict a group, or what went wrong."""
    try:
        known = lookup()
    except RouteClientError as error:
        return repr(error)
    return [dict(group.broker_addrs) for group in known.route.broker_datas] if known.route else []


async def ask_anew(names: str) -> KnownRoute:
    """Looks up with a client that knows nothing yet."""
    async with AioRouteClient(names) as client:
        return await client.route(TOPIC)


@pytest.mark.timeout(300)
def test_name_servers_are_upgraded_one_by_one_and_no_lookup_fails_or_lacks_a_broker(tmp_path: Path) -> None:
    with ExitStack() as resources, ExitStack() as clients:

        def start(number: int, port: int = 0) -> NamesrvProcess:
            flags = ("--data-dir", str(tmp_path / str(number)), "--name", f"namesrv-{number}")
            return resources.enter_context(NamesrvProcess(*flags, port=port))

        servers = [start(number) for number in range(3)]
        names = joined(*servers)
        for broker_id, addr in enumerate((MASTER, SLAVE)):
            resources.enter_context(Agent(names, broker_id=broker_id, broker_addr=addr))
        for server in servers:
            with server.connect() as client:
                eventually(client.addrs, lambda addrs: addrs == {0: MASTER, 1: SLAVE})
                topics = topics_of(client)
        runner = clients.enter_context(asyncio.Runner())
        lasting = clients.enter_context(RouteClient(names))
        new = clients.enter_context(asking_all_the_time(lambda: answer_of(lambda: runner.run(ask_anew(names)))))
        kept = clients.enter_context(asking_all_the_time(lambda: answer_of(lambda: lasting.route(TOPIC))))
        for number, old in enumerate(servers):
            assert old.terminate() == 0
            servers[number] = start(number, old.endpoint.port)
            eventually(lambda: is_ready(old.endpoint))  # noqa: B023 - called at once
            count = len(new)
            eventually(lambda: len(new), lambda now: now > count + 10)  # noqa: B023
            with servers[number].connect() as client:
                assert topics_of(client) == topics, "what it serves once it is ready"
                assert client.addrs() == {0: MASTER, 1: SLAVE}
        eventually(lambda: lasting.route(TOPIC).stale, lambda stale: stale is None)
        clients.close()
        whole = [{0: MASTER, 1: SLAVE}]
        assert [answer for answer in (*new, *kept) if answer != whole] == []
        assert [server.events("broker_removed") for server in servers] == [[], [], []]
