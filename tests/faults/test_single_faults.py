"""One fault at a time, with what exactly must come of it: who leaves, how often, and who stays."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.faults.fleet.fleet import PINGS
from tests.faults.network import Network
from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually

ADDR = "127.0.0.1:10911"
WAY = ("agent", "namesrv")


@dataclass
class Pair:
    """A name server, and an agent that reaches it over a link."""

    server: NamesrvProcess
    client: Client
    agent: Agent
    network: Network

    def has_broker(self) -> bool:
        return self.client.addrs() == {0: ADDR}

    def reasons(self) -> list[str]:
        return [str(line["reason"]) for line in self.server.events("broker_removed")]

    def registered(self) -> int:
        """How often a registration was new."""
        return sum(bool(line["new"]) for line in self.server.events("broker_registered"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A pair whose broker is in routes."""
    with ExitStack() as stack:
        network = stack.enter_context(Network(seed=1))
        server = stack.enter_context(NamesrvProcess(*PINGS, "--log-level", "debug"))
        reached = network.way(*WAY, server.endpoint)
        often = ("--register-name-server-period-millis", "1000", "--keepalive-time-millis", "1000")
        agent = stack.enter_context(Agent(str(reached), *often, broker_addr=ADDR))
        pair = Pair(server, stack.enter_context(server.connect()), agent, network)
        eventually(pair.has_broker)
        yield pair


@pytest.mark.parametrize(
    "happens",
    [
        lambda pair: pair.network.cut(*WAY, down=False),
        lambda pair: pair.network.cut(*WAY, up=False),
        lambda pair: pair.agent.signal(signal.SIGSTOP),
        lambda pair: pair.network.reset(*WAY),
    ],
    ids=["cut up", "cut down", "stopped", "reset"],
)
def test_an_agent_that_is_lost_leaves_once_and_comes_back_once(pair: Pair, happens: Callable[[Pair], None]) -> None:
    happens(pair)
    eventually(pair.reasons)
    pair.network.heal(*WAY)
    pair.agent.signal(signal.SIGCONT)
    eventually(lambda: pair.registered() == 2)
    eventually(pair.has_broker)
    assert pair.reasons() == ["CHANNEL_CLOSED"]


def test_the_late_end_of_a_lost_connection_undoes_no_new_registration(pair: Pair) -> None:
    pair.network.half_open(*WAY, server_knows=False)
    eventually(lambda: len(pair.server.events("channel_opened")) == 2)
    eventually(lambda: pair.server.events("channel_ended"))
    assert pair.has_broker()
    assert pair.reasons() == []


def test_a_stopped_name_server_blames_no_agent_when_it_goes_on(pair: Pair) -> None:
    pair.server.signal(signal.SIGSTOP)
    threading.Event().wait(9.0)  # how long the fault lasts: longer than the agent waits for a ping's answer
    pair.server.signal(signal.SIGCONT)
    pair.server.wait_for("own_stall")
    eventually(pair.has_broker)
    assert pair.reasons() == []


def test_when_all_brokers_vanish_at_once_the_guard_keeps_them_all() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NamesrvProcess())
        client = stack.enter_context(server.connect())
        addrs = {number: f"127.0.0.1:{10911 + number}" for number in range(5)}
        agents = [
            stack.enter_context(Agent(str(server.endpoint), broker_id=number, broker_addr=addr))
            for number, addr in addrs.items()
        ]
        eventually(client.addrs, lambda seen: seen == addrs)
        for agent in agents:
            agent.kill()
        eventually(lambda: sum(int(line["brokers"]) for line in server.events("mass_loss_guard")) >= len(addrs))
        assert client.addrs() == addrs
