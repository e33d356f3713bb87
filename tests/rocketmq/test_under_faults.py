"""RocketMQ's own brokers in the fleet of the fault suite, next to agents: killed, stopped and cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.fleet.fleet import JAVA, SERVERS
from tests.faults.history import Answer, answers_of, of_kind
from tests.faults.nemesis import Fault, Round
from tests.faults.run import run

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
KILLED_SECONDS = 16.0
"""Longer than the bound of what is told by a connection that ends, which is 15 s."""
ROUNDS = (
    # One of the two is killed, and the other one is stopped.
    Round((Fault("kill-rocketmq", KILLED_SECONDS, "0"), Fault("stop-rocketmq", KILLED_SECONDS, "0")), 0.5),
    Round((Fault("cut-rocketmq", 4.0, "0"), Fault("kill-namesrv", 4.0, "0")), 0.5),
)
EVERYBODY = {"broker-a-0", "broker-a-1", "broker-b-0", "broker-c-0", "broker-d-0", *JAVA}


def last_before(answers: list[Answer], server: str, at: float) -> set[str]:
    """The brokers in the last lookup of a name server before a time."""
    return [answer for answer in answers if answer.server == server and answer.ended < at][-1].brokers()


@pytest.mark.usefixtures("home")
def test_every_invariant_holds_for_rocketmqs_own_brokers_beside_agents(tmp_path: Path) -> None:
    """In the profile ``long`` they are stopped until their silence counts, and meet all other faults."""
    violations, records = run(tmp_path, 1, ROUNDS, rocketmq=True)
    assert violations == []
    answers = list(answers_of(records))
    events = [r for r in of_kind(records, "process") if r["name"] in JAVA]
    (killed,) = (event for event in events if event["event"] == "killed")
    (restarted,) = (event for event in events if event["event"] == "starting" and event["at"] > killed["at"])
    (stopped,) = (event for event in events if event["event"] == "stopped")
    assert {killed["name"], stopped["name"]} == JAVA
    for server in SERVERS:
        assert killed["name"] not in last_before(answers, server, restarted["at"])
        assert last_before(answers, server, records[-1]["at"]) == EVERYBODY
    entries = [e for r in of_kind(records, "journal") if r["group"] == killed["name"][:-2] for e in r["entries"]]
    assert {entry["reason"] for entry in entries if entry["removed"]} >= {"CHANNEL_CLOSED"}
    assert [link["client"] in JAVA for link in of_kind(records, "link")] == [True, True]
