"""An agent that crashes at a failpoint, or whose disk fails, keeps what it acknowledged, and nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.faults.files.failpoints import CRASHED, LIST
from tests.faults.fleet.operated_agent import COUNTED, ITEMS, QUEUES, OperatedAgent
from tests.support import failpoints
from tests.support.programs.agents import EXACTLY, Agent, name_servers, topics_of
from tests.support.programs.processes import Client, eventually

RUNS = int(os.environ.get("FAULTS_AGENT_CRASHES", "6"))
"""Points at which an agent is crashed, by chance; with a hundred or more, each. One takes two to four seconds."""
SLAVE_RUNS = max(1, RUNS // 6)
"""Points at which a slave is; it takes its time to copy, ten seconds each."""
MOST_CHANGES = 40
POINTS = [point for point in LIST.read_text().splitlines() if point.split()[-1].startswith("topics.json")]
OF_A_BROKEN_FILE = [point for point in POINTS if ".broken" in point]
"""Points where a broken file is put aside: at a start."""
OF_A_COPY = [point for point in POINTS if ".bak" in point]
"""Points where a file becomes its own copy: not where a copy takes a file's place."""
ERRORS = ("ENOSPC", "EIO", "EROFS")

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
def test_what_an_agent_acknowledged_is_there_after_a_crash_at_any_failpoint(tmp_path: Path) -> None:
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
                # The copy has what is checked next, and what a crash left is gone with the second change at the latest:
                # the first one may find a copy that is the file itself, which no rename can replace.
                operated.change(client, QUEUES)
                operated.change(client, QUEUES)
            left = {path.name for path in tmp_path.iterdir()} - {"faults", "faults.hits"}
            assert left <= {"topics.json", "topics.json.bak", "topics.json.broken"}, "no half file stays"


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
def test_a_disk_that_fails_costs_an_agent_changes_and_nothing_else_until_it_is_mended(
    tmp_path: Path, step: str
) -> None:
    with name_servers(1, *EXACTLY) as [(server, namesrv)]:
        operated = OperatedAgent(tmp_path, str(server.endpoint))
        with operated.start() as agent, agent.connect() as client:
            for item in ITEMS:
                operated.change(client, item)
            for error in ERRORS:
                operated.faults.write_text(f"before {step} topics.json* = {error}\n")
                refusals = [operated.refusal(client, item) for item in ITEMS]
                assert [refusal and refusal.reason for refusal in refusals] == ["NOT_DURABLE"] * len(ITEMS)
                operated.check(client)
                eventually(lambda: has_queues(namesrv, operated.queues))
            operated.faults.write_text("")
            for item in ITEMS:
                operated.change(client, item)
            agent.kill()
        with operated.start() as agent, agent.connect() as client:
            operated.check(client)


def queues_at(agent: Agent) -> int:
    """How many queues the counted topic has there; 0 if it is not there yet."""
    with agent.connect() as client:
        table = client.table()
    return next((topic.read_queue_nums for topic in table.topic_configs if topic.topic == COUNTED), 0)


@pytest.mark.timeout(120)
def test_a_slave_that_crashes_while_it_copies_has_the_masters_topics_in_its_next_life(tmp_path: Path) -> None:
    faults, topics = tmp_path / "slave-faults", tmp_path / "slave" / "topics.json"
    with name_servers(1) as [(server, _)]:
        master = OperatedAgent(tmp_path, str(server.endpoint))
        with master.start() as agent, agent.connect() as client:

            def start_slave() -> Agent:
                files = ("--topics-mode", "own", "--master-agent", str(agent.endpoint))
                return Agent(
                    *(str(server.endpoint), *files),
                    broker_id=1,
                    broker_addr="127.0.0.1:10912",
                    topics=topics,
                    environment=failpoints.environment(faults),
                )

            def copies() -> None:
                with start_slave() as slave:
                    eventually(lambda: queues_at(slave), lambda queues: queues == master.queues)

            copies()
            for point in random.sample([point for point in POINTS if point not in OF_A_BROKEN_FILE], SLAVE_RUNS):
                master.change(client, QUEUES)
                faults.write_text(f"{point} = crash\n")
                with start_slave() as slave:
                    assert eventually(slave._popen.poll) == CRASHED, point
                faults.write_text("")
                copies()
