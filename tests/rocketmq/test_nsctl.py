"""nsctl with real programs: Apache's own name server, and a broker that has nothing wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from nsctl.cli import app
from nsctl.session import FOUND
from tests.rocketmq.conftest import REGISTERED_SECONDS, Running
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.rocketmq_programs.programs import Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def said(namesrv: NamesrvProcess, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the rows and the note of a command."""
    result = CliRunner().invoke(app, [*arguments, "-o", "json", "--namesrv", str(namesrv.endpoint)])
    return result.exit_code, json.loads(result.stdout or "[]"), result.stderr


def test_nothing_differs_from_apaches_where_the_same_brokers_registered(fleet: Running) -> None:
    code, rows, note = eventually(
        lambda: said(fleet.namesrv, "compare-rocketmq", fleet.apache), lambda found: found[0] == 0, REGISTERED_SECONDS
    )
    assert (code, rows) == (0, [])
    assert "no difference" in note


@pytest.mark.parametrize("broker", ["broker-a", "broker-b"])
def test_a_broker_is_empty_once_its_messages_are_consumed(fleet: Running, shell: Shell, broker: str) -> None:
    topic, addr = f"Emptied-{broker}", {"broker-a": fleet.new.addr, "broker-b": fleet.old.addr}[broker]
    made = shell.mqadmin(fleet.ours, "updateTopic", "-b", addr, "-t", topic, "-r", "2", "-w", "2")
    assert "success" in made

    def left() -> list[int]:
        rows = said(fleet.namesrv, "drain-status", broker, "--broker-addr", addr)[1]
        return [row["messages"] for row in rows if row.get("topic") == topic]

    assert "sent 5" in shell.messages("send", fleet.ours, topic, "5")
    assert "received 5" in shell.messages("receive", fleet.ours, topic, "5")
    eventually(left, lambda found: found == [])
    assert "sent 7" in shell.messages("send", fleet.ours, topic, "7")
    eventually(left, lambda found: found == [7])
    code, rows, note = said(fleet.namesrv, "drain-status", broker, "--yes")
    assert (code, f"{broker} at {addr}: " in note) == (FOUND, True)
    assert "received 7" in shell.messages("receive", fleet.ours, topic, "7")
    # A consumer that ends while queues move to it never commits what it received: other tests leave such groups here.
    gone = {row["group"] for row in rows if row["what"] == "consumer" and row["topic"] != topic}
    ignored = [word for group in gone for word in ("--ignore", group)]

    def emptied() -> tuple[int, list[dict[str, Any]], str]:
        found = said(fleet.namesrv, "drain-status", broker, "--yes", "--wait", "20s", *ignored)
        for row in found[1]:  # it happened to this test's consumer, too
            shell.messages("receive", fleet.ours, topic, str(row["messages"]))
        return found

    code, rows, note = eventually(emptied, lambda found: found[0] == 0, REGISTERED_SECONDS)
    assert (code, rows) == (0, []), note


def test_the_doctor_finds_nothing_wrong_with_stock_brokers(fleet: Running) -> None:
    code, rows, _ = said(fleet.namesrv, "doctor")
    assert (code, [row for row in rows if "event loop" not in row["what"]]) == (0, [])
