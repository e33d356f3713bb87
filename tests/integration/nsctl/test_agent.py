"""nsctl agent: the status of real agents, and what changes their brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsctl.session import FOUND, REFUSED, UNREACHABLE, USAGE
from tests.support.programs.agents import Agent, free_port, joined
from tests.support.programs.nsctl_runs import rows, run
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.secured.fleet import Place


@pytest.fixture
def registered() -> Iterator[tuple[str, Client]]:
    """An agent at one name server, and a client of that."""
    with NamesrvProcess() as namesrv, namesrv.connect() as client, Agent(str(namesrv.endpoint)) as agent:
        eventually(client.route)
        eventually(lambda: agent.events("registered"))
        yield str(agent.endpoint), client


def test_the_status_has_a_row_for_each_name_server_and_says_where_a_registration_is_missing() -> None:
    with NamesrvProcess() as namesrv, free_port() as nobody, Agent(joined(namesrv, nobody)) as agent:
        eventually(lambda: agent.events("registered"))
        there, away = rows("agent", "status", agent.endpoint, exit_code=FOUND)
        assert (there["broker_name"], there["broker_id"], there.get("broker_probe")) == ("broker-a", 0, None)
        assert (there["endpoint"], there["registered"], there["last_kind"]) == (str(namesrv.endpoint), True, "FULL")
        assert (away["endpoint"], away["registered"]) == (str(nobody), False)
        assert "UNAVAILABLE" in away["problem"]
        assert {event["kind"] for event in rows("agent", "events", agent.endpoint)} == {"CHANNEL_OPENED"}


def test_an_agent_that_does_not_answer_does_not_hide_the_others(registered: tuple[str, Client]) -> None:
    agent, _ = registered
    with free_port() as nobody:
        assert [row["agent"] for row in rows("agent", "status", nobody, agent, exit_code=UNREACHABLE)] == [agent]
        assert f"{nobody}: UNAVAILABLE" in run("agent", "status", nobody, agent, exit_code=UNREACHABLE).stderr


def test_a_change_is_shown_first_and_then_made_and_is_in_the_routes(registered: tuple[str, Client]) -> None:
    agent, client = registered
    [preview] = rows("agent", "permission", agent, "4", "--dry-run")
    assert (preview["was"], preview["to"], preview["result"]) == ("RW-", "R--", "would be done")
    assert [row["broker_permission"] for row in rows("agent", "status", agent)] == [6], "nothing has changed"
    [done] = rows("agent", "permission", agent, "4")
    assert (done["was"], done["to"], done["result"], done["accepted"]) == ("RW-", "R--", "done", 1)
    [done] = rows("agent", "role", agent, "7")
    assert (done["was"], done["to"], done["accepted"]) == (0, 7, 1)
    assert client.addrs() == {7: "127.0.0.1:10911"}
    assert "failed: INVALID_FIELD" in run("agent", "role", agent, "8", "--state-version", "0", exit_code=REFUSED).output


def test_what_is_no_agent_and_no_role_is_said_before_anybody_is_asked() -> None:
    assert "AGENT: address 'nowhere' has no port" in run("agent", "status", "nowhere", exit_code=USAGE).output
    assert "greater than or equal to 0" in run("agent", "role", "127.0.0.1:1", "--", "-1", exit_code=USAGE).output
    assert "less than or equal to 7" in run("agent", "permission", "127.0.0.1:1", "8", exit_code=USAGE).output


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
        assert f"{agent.endpoint}: it speaks TLS, and was called in plain text: give --tls-ca" in told
