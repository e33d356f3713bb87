"""Roles: a change of them reaches every route, two agents with one id notice, and a slave has its master's topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_agent_api.v1 import broker_agent_service_pb2 as agent_pb
from broker_agent_api.v1 import topic_config_service_pb2 as topics_pb

from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, name_servers
from tests.support.programs.processes import eventually

MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:10921"


def test_master_and_slave_change_places() -> None:
    with (
        name_servers(1) as [(server, client)],
        Agent(str(server.endpoint), broker_addr=MASTER) as first,
        Agent(str(server.endpoint), broker_id=1, broker_addr=SLAVE) as second,
        first.connect() as of_first,
        second.connect() as of_second,
    ):
        eventually(client.addrs, lambda addrs: addrs == {0: MASTER, 1: SLAVE})
        demoted = of_first.agent.ChangeBrokerRole(
            agent_pb.ChangeBrokerRoleRequest(broker_id=1, state_version=5), timeout=TIMEOUT
        )
        promoted = of_second.agent.ChangeBrokerRole(
            agent_pb.ChangeBrokerRoleRequest(broker_id=0, state_version=5), timeout=TIMEOUT
        )
        assert (demoted.state_version, promoted.state_version) == (5, 5)
        eventually(client.addrs, lambda addrs: addrs.get(0) == SLAVE)


@pytest.fixture
def own_topics(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("master", "slave"):
        (tmp_path / name).mkdir()
    return tmp_path / "master" / "topics.json", tmp_path / "slave" / "topics.json"


def test_a_slave_copies_and_keeps_its_masters_topics(own_topics: tuple[Path, Path]) -> None:
    of_master, of_slave = own_topics
    with (
        name_servers(1) as [(server, client)],
        Agent(str(server.endpoint), "--topics-mode", "own", broker_addr=MASTER, topics=of_master) as master,
        Agent(
            str(server.endpoint),
            *("--topics-mode", "own", "--master-agent", str(master.endpoint)),
            broker_id=1,
            broker_addr=SLAVE,
            topics=of_slave,
        ) as slave,
        master.connect() as at_master,
        slave.connect() as at_slave,
    ):
        topic = topics_pb.TopicConfig(topic="Copied", read_queue_nums=3, write_queue_nums=3, perm=6)
        at_master.topics.CreateOrUpdateTopic(topics_pb.CreateOrUpdateTopicRequest(topic_config=topic), timeout=TIMEOUT)
        eventually(lambda: client.route("Copied"))
        wanted = at_master.table()
        eventually(at_slave.table, lambda held: held == wanted)
        assert "Copied" in [held.topic for held in wanted.topic_configs]
        master.kill()
        eventually(client.addrs, lambda addrs: 0 not in addrs)
        assert at_slave.table() == wanted
