"""nsctl beside real programs: Apache's own name server, and a broker that has nothing wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from nsctl.cli import app
from nsctl.session import FOUND
from tests.rocketmq.conftest import REGISTERED_SECONDS, Fleet
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.rocketmq_programs.programs import Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def said(namesrv: NamesrvProcess, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """The exit code, the rows and the note of a command."""
    result = CliRunner().invoke(app, [*arguments, "-o", "json", "--namesrv", str(namesrv.endpoint)])
    return result.exit_code, json.loads(result.stdout or "[]"), result.stderr


def test_nothing_differs_from_apaches_when_the_same_brokers_registered_at_both(fleet: Fleet) -> None:
    code, rows, note = eventually(
        lambda: said(fleet.namesrv, "compare-rocketmq", fleet.apache), lambda found: found[0] == 0, REGISTERED_SECONDS
    )
    assert (code, rows) == (0, [])
    assert "no difference" in note


def test_a_topic_that_only_one_of_them_has_is_shown(fleet: Fleet, shell: Shell) -> None:
    both = f"{fleet.ours};{fleet.apache}"
    shell.mqadmin(both, "updateTopic", "-b", fleet.new.addr, "-t", "OneSided", "-r", "3", "-w", "3")
    eventually(lambda: said(fleet.namesrv, "compare-rocketmq", fleet.apache)[0], lambda code: code == 0)
    try:
        assert "success" in shell.mqadmin(fleet.ours, "deleteTopic", "-c", "DefaultCluster", "-t", "OneSided")
        code, rows, _ = said(fleet.namesrv, "compare-rocketmq", fleet.apache)
        assert (code, [row["part"] for row in rows]) == (FOUND, ["topic"])
        assert [rows[0][key] for key in ("topic", "here", "rocketmq")] == ["OneSided", "not there", "RW- 3/3"]
    finally:
        shell.mqadmin(both, "deleteTopic", "-c", "DefaultCluster", "-t", "OneSided")


def test_brokers_that_are_not_there_are_shown(fleet: Fleet) -> None:
    with NamesrvProcess() as empty:
        code, rows, _ = said(empty, "compare-rocketmq", fleet.apache)
    brokers = {row["broker"]: row for row in rows}
    assert code == FOUND
    assert sorted(brokers) == ["broker-a", "broker-b"]
    assert (brokers["broker-a"]["here"], brokers["broker-a"]["rocketmq"]) == ("not there", f"0: {fleet.new.addr}")


def test_the_doctor_finds_nothing_wrong_with_stock_brokers(fleet: Fleet) -> None:
    code, rows, _ = said(fleet.namesrv, "doctor")
    assert (code, [row for row in rows if "event loop" not in row["what"]]) == (0, [])
