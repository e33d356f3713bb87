"""One fault at a time, with what exactly must come of it: who leaves, how often, and who stays."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.faults.fleet.fleet import PINGS
from tests.faults.network import Network
from tests.support.programs.agents import Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually

ADDR = "127.0.0.1:10911"
WAY = ("agent", "namesrv")
OFTEN = ("--register-name-server-period-millis", "1000")
NO_PINGS = ("--keepalive-time-millis", "3600000")
AGENT_PINGS, NO_AGENT_PINGS = ("--keepalive-time-millis", "1000"), ("--keepalive-time-millis", "3600000")
EXPIRY_SECONDS = 8.0
BY_SILENCE = (
    *NO_PINGS,
    *("--broker-channel-expired-time-millis", str(int(EXPIRY_SECONDS * 1000))),
    *("--scan-not-active-broker-interval-millis", "200", "--mass-loss-percent", "100"),
)


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


@contextmanager
def pair_of(server_flags: tuple[str, ...], agent_flags: tuple[str, ...]) -> Iterator[Pair]:
    """Starts a pair, whose broker is in routes then."""
    with ExitStack() as stack:
        network = stack.enter_context(Network(seed=1))
        server = stack.enter_context(NamesrvProcess(*server_flags))
        reached = network.way(*WAY, server.endpoint)
        agent = stack.enter_context(Agent(str(reached), *OFTEN, *agent_flags, broker_addr=ADDR))
        pair = Pair(server, stack.enter_context(server.connect()), agent, network)
        eventually(pair.has_broker)
        yield pair


@pytest.fixture
def by_silence() -> Iterator[Pair]:
    with pair_of(BY_SILENCE, NO_AGENT_PINGS) as pair:
        yield pair


@pytest.fixture
def by_pings() -> Iterator[Pair]:
    with pair_of((*PINGS, "--log-level", "debug"), AGENT_PINGS) as pair:
        yield pair


def test_a_cut_that_heals_just_before_the_expiry_costs_nothing(by_silence: Pair) -> None:
    by_silence.network.cut(*WAY)
    # How long the fault lasts: a period and a busy machine fit into the rest.
    threading.Event().wait(EXPIRY_SECONDS - 5.0)
    by_silence.network.heal(*WAY)
    threading.Event().wait(EXPIRY_SECONDS - 2.0)  # by now it would have gone
    assert by_silence.has_broker()
    assert by_silence.reasons() == []
    assert by_silence.registered() == 1


def test_a_cut_that_heals_just_after_the_expiry_costs_one_removal(by_silence: Pair) -> None:
    by_silence.network.cut(*WAY)
    eventually(by_silence.reasons)
    assert by_silence.client.addrs() == {}
    by_silence.network.heal(*WAY)
    eventually(by_silence.has_broker)
    eventually(lambda: by_silence.registered() == 2)
    assert by_silence.reasons() == ["EXPIRED"]


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
def test_an_agent_that_is_lost_leaves_once_and_comes_back_once(by_pings: Pair, happens: Callable[[Pair], None]) -> None:
    happens(by_pings)
    eventually(by_pings.reasons)
    by_pings.network.heal(*WAY)
    by_pings.agent.signal(signal.SIGCONT)
    eventually(lambda: by_pings.registered() == 2)
    eventually(by_pings.has_broker)
    assert by_pings.reasons() == ["CHANNEL_CLOSED"]


def test_the_late_end_of_a_lost_connection_undoes_no_new_registration(by_pings: Pair) -> None:
    by_pings.network.half_open(*WAY, server_knows=False)
    eventually(lambda: len(by_pings.server.events("channel_opened")) == 2)
    eventually(lambda: by_pings.server.events("channel_ended"))
    assert by_pings.has_broker()
    assert by_pings.reasons() == []


def test_a_stopped_name_server_blames_no_agent_when_it_goes_on(by_pings: Pair) -> None:
    by_pings.server.signal(signal.SIGSTOP)
    threading.Event().wait(9.0)  # how long the fault lasts: longer than the agent waits for a ping's answer
    by_pings.server.signal(signal.SIGCONT)
    by_pings.server.wait_for("own_stall")
    eventually(by_pings.has_broker)
    assert by_pings.reasons() == []


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
