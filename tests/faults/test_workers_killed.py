"""A process of a name server with several is killed again and again under lookups, over ever new connections."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import grpc
import pytest

from support.agents import asking_all_the_time
from support.processes import NamesrvProcess, eventually
from support.registrations import register_group
from tests.integration.fleet.worker_processes import at, processes, workers

KILLS = 3
OWNER, OTHER = 0, 1
FOUND, NOT_FOUND = "found", "not found"
ADDRS = {0: "127.0.0.1:10911"}
PATIENT = ("--snapshot-interval-millis", "50", "--warm-up-millis", "2000")


def lookup(server: NamesrvProcess) -> str:
    """What a client finds that has just come: the topic, nothing, or the code of an error."""
    with server.connect() as client:
        try:
            addrs = client.addrs("T1")
        except grpc.RpcError as error:
            return str(error.code().name)
    return FOUND if addrs == ADDRS else NOT_FOUND


def kill(server: NamesrvProcess, victim: int, kills_before: int) -> None:
    """Kills a process, and waits until another has its place and listens."""
    os.kill(processes(server)[victim], signal.SIGKILL)
    eventually(lambda: len(server.events("worker_ended")), lambda seen: seen > kills_before)
    eventually(lambda: len(server.events("namesrv_started")), lambda seen: seen > 2 + kills_before)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", [OWNER, OTHER], ids=["owner", "other"])
def test_whichever_process_is_killed_no_newcomer_is_told_that_a_topic_is_not_there(victim: int, tmp_path: Path) -> None:
    with workers("--data-dir", str(tmp_path), *PATIENT) as server:
        with at(server, owner=True) as owner:
            register_group(owner, "T1")
        eventually(lambda: lookup(server), lambda answer: answer == FOUND)
        eventually((tmp_path / "routes.snapshot").exists)
        with at(server, owner=victim != OWNER) as untouched, asking_all_the_time(lambda: lookup(server)) as answers:
            for number in range(KILLS):
                kill(server, victim, number)
                assert untouched.addrs("T1") == ADDRS
    counted = Counter(answers)
    assert counted.keys() <= {FOUND, "UNAVAILABLE"}, counted
    assert counted[FOUND], counted
