"""What goes: a topic that its broker deletes, a master by SIGKILL, whose slave then acts, the slave by SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rocketmq.conftest import ALLOWED, REGISTERED_SECONDS, address_of, wait_until_registered
from tests.support.programs.agents import EXACTLY, Agent
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.rocketmq_programs.programs import Broker, Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
GONE_SECONDS = 5.0
"""The end of a connection is seen within milliseconds; the rest is a busy machine."""
SYNCHRONISED_SECONDS = 60.0
"""A slave asks its master for topics every ten seconds."""
FLAGS = ("--support-acting-master", "--delete-topic-with-broker-registration")
SETTINGS = (
    "enableSlaveActingMaster=true",
    "slaveReadEnable=true",
    # A new topic is registered alone by its own call: a registration is the whole table, so it removes other topics.
    "enableSingleTopicRegister=true",
)
GET_BROKER_RUNTIME_INFO, GET_TOPIC_CONFIG, DELETE_TOPIC_IN_BROKER = 28, 351, 215
"""Requests to brokers."""


class Group(NamedTuple):
    """A master and a slave."""

    namesrv: NamesrvProcess
    address: str
    client: Client
    master: Broker
    slave: Broker


@pytest.fixture(scope="module")
def group(home: Path) -> Iterator[Group]:
    with NamesrvProcess(*ALLOWED, "--data-dir", str(home / "ends"), *FLAGS) as namesrv, namesrv.connect() as client:
        address = address_of(namesrv)
        with (
            Broker(home, address, "broker-m", settings=SETTINGS) as master,
            Broker(home, address, "broker-m", 1, settings=SETTINGS) as slave,
        ):
            for broker_id, broker in enumerate((master, slave)):
                wait_until_registered(client, broker.listening(), "broker-m", broker_id)
            yield Group(namesrv, address, client, master, slave)
        assert namesrv.events("internal_defect") == []


class Beside(NamedTuple):
    """An agent of this project next to the master, and a name server that hears of it from that agent alone."""

    namesrv: NamesrvProcess
    agent: Agent
    client: Client


@pytest.fixture(scope="module")
def beside(group: Group) -> Iterator[Beside]:
    """The agent follows the topics of the master, and takes it for dead after one failed probe."""
    quick = ("--broker-name", "broker-m", "--probe-failures", "1")
    with (
        NamesrvProcess(*EXACTLY) as namesrv,
        namesrv.connect() as client,
        Agent(
            str(namesrv.endpoint), *quick, broker_addr=group.master.addr, topics=group.master.topics_file, probe="tcp"
        ) as agent,
    ):
        eventually(lambda: client.addrs("broker-m"), lambda addrs: addrs == {0: group.master.addr})
        yield Beside(namesrv, agent, client)


def make_topic(group: Group, shell: Shell, topic: str) -> None:
    made = shell.mqadmin(group.address, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    assert "success" in made, made
    both = {0: group.master.addr, 1: group.slave.addr}
    eventually(lambda: group.client.addrs(topic), lambda addrs: addrs == both)


def last_reason(namesrv: NamesrvProcess, addr: str) -> list[str]:
    """Why the name server removed a broker the last time. One that waits too long for an answer reconnects."""
    return [line["reason"] for line in namesrv.events("broker_removed") if line["addr"] == addr][-1:]


def has_all_of(slave: Broker, master: Broker) -> bool:
    """Whether a slave has its master's topic and messages."""
    ends = set()
    with RemotingClient(slave.addr) as of_slave, RemotingClient(master.addr) as of_master:
        for client in (of_slave, of_master):
            ends.add(client.ask(GET_BROKER_RUNTIME_INFO).json["table"]["commitLogMaxOffset"])
        return of_slave.ask(GET_TOPIC_CONFIG, {"topic": "Ends"}).code == 0 and len(ends) == 1


def test_a_topic_that_only_its_broker_deletes_leaves_the_exact_route(group: Group, shell: Shell) -> None:
    """Upstream: 7884. mqadmin deletes a topic at the name servers as well, this at the broker alone."""
    for topic in ("Deleted", "Stays"):
        make_topic(group, shell, topic)
    with RemotingClient(group.master.addr) as broker:
        assert broker.ask(DELETE_TOPIC_IN_BROKER, {"topic": "Deleted"}).code == 0
    eventually(lambda: group.client.route("Deleted"), lambda route: route is None, REGISTERED_SECONDS)
    assert group.client.addrs("Stays") == {0: group.master.addr, 1: group.slave.addr}


def test_a_topic_that_a_broker_beside_an_agent_deletes_leaves_the_route(
    group: Group, beside: Beside, shell: Shell
) -> None:
    """Upstream: 7884, too."""
    for topic in ("DeletedBeside", "StaysBeside"):
        make_topic(group, shell, topic)
        eventually(lambda topic=topic: beside.client.addrs(topic) == {0: group.master.addr})  # type: ignore[misc]
    with RemotingClient(group.master.addr) as broker:
        assert broker.ask(DELETE_TOPIC_IN_BROKER, {"topic": "DeletedBeside"}).code == 0
    eventually(lambda: beside.client.route("DeletedBeside"), lambda route: route is None)
    assert beside.client.addrs("StaysBeside") == {0: group.master.addr}


def test_a_slave_acts_for_a_killed_master_and_leaves_when_asked_to_end(
    group: Group, beside: Beside, shell: Shell
) -> None:
    namesrv, address, client, master, slave = group
    make_topic(group, shell, "Ends")
    shell.messages("send", address, "Ends", "20")
    eventually(lambda: has_all_of(slave, master), within_seconds=SYNCHRONISED_SECONDS)

    assert beside.client.addrs("broker-m") == {0: master.addr}
    master.kill()
    eventually(lambda: beside.client.route("broker-m"), lambda route: route is None)
    # The agent lives on, so its looks at the broker have told. What a process says comes later.
    eventually(lambda: [line["reason"] for line in beside.namesrv.events("broker_removed")], ["BROKER_DOWN"].__eq__)
    eventually(lambda: len(beside.agent.events("broker_down")), lambda told: told == 1)
    eventually(lambda: client.addrs("Ends").get(0), lambda addr: addr == slave.addr, GONE_SECONDS)
    route = client.route("Ends")
    assert route is not None
    assert [queues.perm for queues in route.queue_datas] == [4]
    assert "received 20" in shell.messages("receive", address, "Ends", "20")

    slave.terminate()
    eventually(lambda: client.route("Ends"), lambda found: found is None, SYNCHRONISED_SECONDS)
    for gone, reason in ((master, "CHANNEL_CLOSED"), (slave, "UNREGISTERED")):
        eventually(lambda: last_reason(namesrv, gone.addr), [reason].__eq__)  # noqa: B023
