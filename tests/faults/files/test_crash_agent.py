"""An agent that crashes at a failpoint keeps what it acknowledged, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.faults.files.failpoints import CRASHED, LIST
from tests.faults.fleet.operated_agent import COUNTED, ITEMS, QUEUES, OperatedAgent
from tests.support.programs.agents import EXACTLY, name_servers, topics_of
from tests.support.programs.processes import Client, eventually

RUNS = int(os.environ.get("FAULTS_AGENT_CRASHES", "6"))
"""Points at which an agent is crashed, by chance; with a hundred or more, each. One takes two to four seconds."""
MOST_CHANGES = 40
POINTS = [point for point in LIST.read_text().splitlines() if point.split()[-1].startswith("topics.json")]
OF_A_BROKEN_FILE = [point for point in POINTS if ".broken" in point]
"""Points where a broken file is quarantined: at a start."""
OF_A_COPY = [point for point in POINTS if ".bak" in point]
"""Points where a file becomes its own copy: not where a copy takes a file's place."""

Crash = Callable[[OperatedAgent, str, random.Random], None]


def crash_while_serving(operated: OperatedAgent, point: str, rng: random.Random) -> None:
    with operated.start() as agent, agent.connect() as client:
        operated.check(client)
        operated.change(client, QUEUES)
        operated.faults.write_text(f"{point} = crash\n")
        for _ in range(MOST_CHANGES):
            try:
                operated.change(client, rng.choice(ITEMS))
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNAVAILABLE:
                    break
                raise
        assert eventually(agent._popen.poll) == CRASHED, point


def crash_while_mending(operated: OperatedAgent, point: str, rng: random.Random) -> None:
    """The file is broken: the agent puts it aside and takes its copy, and crashes over that."""
    del rng
    operated.topics.write_bytes(b"\0")
    with pytest.raises(AssertionError, match=f"ended with {CRASHED} before agent_started"):
        operated.start(f"{point} = crash\n")


def cases() -> list[tuple[Crash, str]]:
    serving: list[tuple[Crash, str]] = [
        (crash_while_serving, point) for point in POINTS if point not in OF_A_BROKEN_FILE
    ]
    return serving + [(crash_while_mending, point) for point in POINTS if point not in OF_A_COPY]


def has_queues(client: Client, queues: int) -> bool:
    return topics_of(client).get(COUNTED, (0, 0, 0))[0] == queues


@pytest.mark.timeout(60 + 10 * RUNS)
def test_what_an_agent_acknowledged_is_there_after_a_crash_anywhere(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with name_servers(1, *EXACTLY) as [(server, namesrv)]:
        operated = OperatedAgent(tmp_path, str(server.endpoint))
        with operated.start() as agent, agent.connect() as client:
            for item in ITEMS:
                operated.change(client, item)
        chosen = cases()
        rng.shuffle(chosen)
        for crash, point in chosen[:RUNS]:
            crash(operated, point, rng)
            with operated.start() as agent, agent.connect() as client:
                operated.check(client, from_copy=crash is crash_while_mending)
                eventually(lambda: has_queues(namesrv, operated.queues))
                # The copy has what is checked next. The second change removes the rest of a crash: the first one may
                # find a copy that is the file itself, which no rename can replace.
                operated.change(client, QUEUES)
                operated.change(client, QUEUES)
            left = {path.name for path in tmp_path.iterdir()} - {"faults", "faults.hits"}
            assert left <= {"topics.json", "topics.json.bak", "topics.json.broken"}, "no half file stays"
