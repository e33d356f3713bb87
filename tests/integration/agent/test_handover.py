"""An agent is upgraded, and every answer to a client has its healthy broker."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.programs.agents import Agent, asking_all_the_time
from tests.support.programs.processes import Client, NamesrvProcess, eventually

KEEP = ("--on-stop", "keep")
ADDR = "127.0.0.1:10911"


def generation(client: Client) -> int:
    """Number of the broker's registration; 0 if there is none."""
    return max((row.generation for message in client.snapshot() for row in message.chunk.live_brokers), default=0)


def test_no_answer_lacks_the_broker_while_its_agent_is_upgraded(namesrv: NamesrvProcess, client: Client) -> None:
    with ExitStack() as agents:
        old = agents.enter_context(Agent(str(namesrv.endpoint), *KEEP))
        eventually(client.addrs)
        before = generation(client)
        with namesrv.connect() as asking, asking_all_the_time(asking.addrs) as answers:
            assert old.terminate() == 0
            agents.enter_context(Agent(str(namesrv.endpoint), *KEEP))
            eventually(lambda: generation(client) > before)
            count = len(answers)
            assert count, "the client asked while the agents changed"
            eventually(lambda: len(answers), lambda now: now > count + 10)
        assert [answer for answer in answers if answer != {0: ADDR}] == []
        assert namesrv.events("broker_removed") == []
