"""The agent and the client library against name servers with TLS and permits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from namesrv_api.v1 import admin_service_pb2

from broker_agent.listener import SERVICE_NAME
from groundwork.channels import ClientFiles, ClientSecurity
from groundwork.endpoints import Endpoint
from groundwork.health_check import check_health
from route_client import ClientSettings, RouteClient, TopicNotFoundError
from tests.support.programs.agents import Agent
from tests.support.programs.processes import BIN, NamesrvProcess, ended, eventually
from tests.support.secured.agents import agent_flags, give_agent_its_address
from tests.support.secured.fleet import LIVE_SECONDS, Place, connected


def test_an_agent_registers_over_mutual_tls_and_with_a_new_certificate(place: Place) -> None:
    give_agent_its_address(place)
    with (
        NamesrvProcess(*place.flags("mTLS")) as server,
        Agent(str(server.endpoint), *agent_flags(place, "broker")) as agent,
        connected(server.endpoint, place.files("mTLS", "client")) as client,
    ):
        eventually(client.addrs, lambda addrs: addrs == {0: "127.0.0.1:10911"})
        give_agent_its_address(place)
        eventually(lambda: "read again" in agent.raw or agent.events("tls_reloaded"), within_seconds=60)
        assert client.addrs() == {0: "127.0.0.1:10911"}
        assert agent.terminate() == 0
        assert client.addrs() == {}, "it could still unregister"


def test_the_agents_own_listeners_have_tls_and_its_health_check_speaks_it(place: Place) -> None:
    give_agent_its_address(place)
    with NamesrvProcess() as server, Agent(str(server.endpoint), *agent_flags(place, "broker")[2:]) as agent:
        files = ClientFiles(place.authority.path)
        ordinary = Endpoint.parse(str(agent.wait_for("agent_started")["listening_on"]))
        for endpoint, service in ((agent.endpoint, SERVICE_NAME), (ordinary, "")):
            over_tls = partial(check_health, endpoint, service, 20, ClientSecurity(files))
            eventually(over_tls, lambda problem: problem is None)
            assert check_health(endpoint, service, 20) is not None, "without TLS there is no answer"
        program = [str(BIN / "broker-agent"), "healthcheck", "--fast-listen", str(agent.endpoint)]
        # It has three seconds, and no flag for more.
        eventually(lambda: ended([*program, *agent_flags(place, "broker")]).returncode, lambda code: code == 0)
        assert ended(program).returncode == 1


def _known(client: RouteClient) -> str | None:
    """The broker's address by the route of its topic; None while there is no such topic."""
    try:
        client.route("TopicTest")
    except TopicNotFoundError:
        return None
    return client.find_broker_address_in_publish("broker-a")


def _gone(client: RouteClient) -> bool:
    known = client.cached("TopicTest")
    return known is not None and known.route is None


def _watchers(server: NamesrvProcess, place: Place) -> int:
    """How many watch at the name server."""
    with connected(server.endpoint, place.files("token", "admin")) as admin:
        return len(admin.admin.ListWatchers(admin_service_pb2.ListWatchersRequest(), timeout=20).watchers)


def test_a_client_looks_up_and_watches_over_tls_with_a_token(place: Place, tmp_path: Path) -> None:
    give_agent_its_address(place)
    with NamesrvProcess(*place.flags("token")) as server:
        agent_token = (*agent_flags(place, "broker"), "--token-file", str(place.tokens["broker"]))
        settings = ClientSettings(tls=place.files("token", "client"), cache_dir=tmp_path / "cache", poll_seconds=300)
        with (
            Agent(str(server.endpoint), *agent_token) as agent,
            RouteClient(str(server.endpoint), settings) as client,
        ):
            eventually(lambda: agent.events("channel_opened"))
            eventually(lambda: _known(client), lambda addr: addr == "127.0.0.1:10911")
            eventually(lambda: _watchers(server, place))
            assert agent.terminate() == 0
            # Told by the watch: the next poll is minutes away.
            eventually(lambda: _gone(client), within_seconds=LIVE_SECONDS)
