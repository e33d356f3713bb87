"""nsctl agent: the status of real agents, and what changes their brokers."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from broker_agent_api.v1.broker_agent_service_pb2 import GetAgentStatusResponse
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from nsctl.session import FOUND, REFUSED, UNREACHABLE, USAGE
from tests.support.hostile.server import filled, hostile_server
from tests.support.programs.agents import Agent, held_port, joined
from tests.support.programs.nsctl_runs import rows, run
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.secured.fleet import Place


def test_the_status_has_a_row_for_each_name_server_of_agents_that_answer() -> None:
    with NamesrvProcess() as namesrv, held_port() as nobody, Agent(joined(namesrv, nobody)) as agent:
        eventually(lambda: agent.events("registered"))
        there, away = rows("agent", "status", agent.endpoint, exit_code=FOUND)
        assert (there["broker_name"], there["broker_id"], there.get("broker_probe")) == ("broker-a", 0, None)
        assert (there["endpoint"], there["registered"], there["last_kind"]) == (str(namesrv.endpoint), True, "FULL")
        assert (away["endpoint"], away["registered"]) == (str(nobody), False)
        assert "UNAVAILABLE" in away["problem"]
        assert {event["kind"] for event in rows("agent", "events", agent.endpoint)} == {"CHANNEL_OPENED"}
        both = ("agent", "status", nobody, agent.endpoint)
        assert [row["agent"] for row in rows(*both, exit_code=UNREACHABLE)] == [str(agent.endpoint)] * 2
        assert f"{nobody}: cannot be reached" in run(*both, exit_code=UNREACHABLE).stderr


def test_a_change_is_shown_first_and_then_made_and_is_in_the_routes() -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client, Agent(str(namesrv.endpoint)) as agent:
        eventually(lambda: agent.events("registered"))
        permission, role = ("agent", "permission", agent.endpoint), ("agent", "role", agent.endpoint)
        [preview] = rows(*permission, "4", "--dry-run")
        assert (preview["was"], preview["to"], preview["result"]) == ("RW-", "R--", "would be done")
        assert [row["broker_permission"] for row in rows("agent", "status", agent.endpoint)] == [6]
        [done] = rows(*permission, "4")
        assert (done["was"], done["to"], done["result"], done["accepted"]) == ("RW-", "R--", "done", 1)
        [done] = rows(*role, "7")
        assert (done["was"], done["to"], done["accepted"]) == (0, 7, 1)
        assert client.addrs() == {7: "127.0.0.1:10911"}
        assert "failed: INVALID_FIELD" in run(*role, "8", "--state-version", "0", exit_code=REFUSED).output


def test_what_is_no_agent_and_no_role_is_said_before_anybody_is_asked() -> None:
    assert "AGENT: address 'nowhere' has no port" in run("agent", "status", "nowhere", exit_code=USAGE).output
    assert "greater than or equal to 0" in run("agent", "role", "127.0.0.1:1", "--", "-1", exit_code=USAGE).output
    assert "less than or equal to 7" in run("agent", "permission", "127.0.0.1:1", "8", exit_code=USAGE).output


def test_a_permission_that_no_broker_has_is_shown_by_its_three_bits() -> None:
    told = GetAgentStatusResponse(broker_permission=8 + 6)
    with hostile_server(lambda _method, _context: told) as agent:
        [preview] = rows("agent", "permission", agent, "4", "--dry-run")
    assert (preview["was"], preview["to"]) == ("RW-", "R--")


def test_each_agent_of_an_argument_is_changed_once() -> None:
    asked: list[str] = []

    def answer(method: MethodDescriptor, context: grpc.ServicerContext) -> Message:
        asked.append(method.name)
        return filled(method, context)

    with hostile_server(answer) as one, hostile_server(answer) as other:
        changed = rows("agent", "permission", f"{one};{other}", "4")
    assert [row["agent"] for row in changed] == [str(one), str(other)]
    assert sorted(asked) == ["GetAgentStatus"] * 2 + ["UpdateBrokerPermission"] * 2


def test_an_agent_with_tls_is_asked_over_tls(place: Place) -> None:
    flags = place.agent_flags("broker")
    with (
        NamesrvProcess(*place.flags("mTLS")) as namesrv,
        Agent(str(namesrv.endpoint), *flags, "--tls-client-ca", str(place.authority.path)) as agent,
    ):
        eventually(lambda: agent.events("registered"))
        [row] = rows("agent", "status", agent.endpoint, *flags)
        assert row["registered"]
        told = run("agent", "status", agent.endpoint, exit_code=UNREACHABLE).output
        assert f"{agent.endpoint}: the server ended the connection at once: if it speaks TLS, set tls_ca" in told


def test_an_agent_gets_no_token_that_is_for_name_servers(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, token = place.authority.path, place.tokens["admin"]
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(f'[contexts.live]\nnamesrv = "a:1"\ntls_ca = "{authority}"\ntoken_file = "{token}"\n')
    flags = (*place.agent_flags("broker")[2:], "--permits-file", str(place.permits))
    with NamesrvProcess() as namesrv, Agent(str(namesrv.endpoint), *flags) as agent:
        eventually(lambda: agent.events("registered"))
        monkeypatch.setenv("NSCTL_CONTEXTS", str(contexts))
        monkeypatch.setenv("NSCTL_TOKEN_FILE", str(token))
        status = ("agent", "status", agent.endpoint)
        for security in (("--context", "live"), ("--tls-ca", authority)):
            assert "NOT_AUTHENTICATED" in run(*status, *security, exit_code=REFUSED).output
        run(*status, "--tls-ca", authority, "--token-file", token)
