"""A broker written in Go, without an agent, at a real name server."""

from __future__ import annotations

import pytest

from tests.interop.programs import INSTALL_SECONDS, Programs, RunningProgram
from tests.interop.watch_lines import Bookmark
from tests.support.programs.processes import Client, NamesrvProcess, eventually

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

ADDR = "127.0.0.1:10911"
BROKER = ("go-broker", ADDR, "T1", "T2")


def check_broker_removed(watch: RunningProgram, reason: str) -> None:
    """Checks that a watch is told that both topics went with the broker, and why."""
    removals = {topic: change["removals"] for topic, change in Bookmark.next_of(watch).changes.items()}
    removal = {
        "cluster_name": "DefaultCluster",
        "broker_name": "go-broker",
        "broker_id": "0",
        "broker_addr": ADDR,
        "reason": f"REMOVAL_REASON_{reason}",
    }
    assert removals == {"T1": [removal], "T2": [removal]}


def test_a_broker_without_an_agent_registers_over_a_channel_and_unregisters_when_it_is_ended(
    go_programs: Programs, namesrv: NamesrvProcess, client: Client
) -> None:
    with go_programs.start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert broker.next_line()["event"]["opened"]["channel_id"]
        registered = broker.next_line()["registered"]
        assert registered["changed"] is True
        queried = broker.next_line()["data_version_queried"]
        assert queried["changed"] is False
        assert queried["data_version"]["counter"] == "1"
        assert (client.addrs("T1"), client.addrs("T2")) == ({0: ADDR}, {0: ADDR})
        with go_programs.start("watch", str(namesrv.endpoint), "T*") as watch:
            assert Bookmark.next_of(watch).changes.keys() == {"T1", "T2"}
            broker.terminate()
            assert broker.next_line()["unregistered"]["removed"] is True
            assert broker.end() == (0, "")
            check_broker_removed(watch, "UNREGISTERED")
        assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_killed_broker_without_an_agent_leaves_the_routes_by_the_end_of_its_channel(
    go_programs: Programs, namesrv: NamesrvProcess, client: Client
) -> None:
    with go_programs.start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert eventually(lambda: client.addrs("T1")) == {0: ADDR}
        with go_programs.start("watch", str(namesrv.endpoint), "T*") as watch:
            assert Bookmark.next_of(watch).changes.keys() == {"T1", "T2"}
            broker.kill()
            check_broker_removed(watch, "CHANNEL_CLOSED")
        assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_broker_without_an_agent_ends_with_the_reason_when_it_is_refused(
    go_programs: Programs, namesrv: NamesrvProcess
) -> None:
    with go_programs.start("broker", str(namesrv.endpoint), "go\tbroker", *BROKER[1:]) as broker:
        assert "opened" in broker.next_line()["event"]
        code, error = broker.end()
    assert (code, error.split(":")[0]) == (1, "InvalidArgument INVALID_FIELD")
