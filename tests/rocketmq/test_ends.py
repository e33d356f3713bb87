"""Brokers that end, by SIGKILL and by SIGTERM, and the slave that stands in for its master."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import Client, NamesrvProcess, eventually
from support.rocketmq import RemotingClient
from support.rocketmq_programs.programs import Broker, Shell
from tests.rocketmq.conftest import ALLOWED, address_of, wait_until_registered

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
GONE_SECONDS = 5.0
"""The end of a connection is seen within milliseconds; the rest is a busy machine."""
SYNCHRONISED_SECONDS = 60.0
"""A slave asks its master for topics every ten seconds."""
GET_BROKER_RUNTIME_INFO, GET_TOPIC_CONFIG = 28, 351
"""Requests to brokers."""
ACTING = ("enableSlaveActingMaster=true", "slaveReadEnable=true")


@pytest.fixture
def namesrv(home: Path) -> Iterator[NamesrvProcess]:
    """A name server that shows slaves as masters where brokers ask for it."""
    with NamesrvProcess(*ALLOWED, "--data-dir", str(home / "ends"), "--support-acting-master") as process:
        yield process
        assert process.events("internal_defect") == []


def has_all_of(slave: Broker, master: Broker) -> bool:
    """Whether a slave has its master's topic and messages."""
    ends = set()
    with RemotingClient(slave.addr) as of_slave, RemotingClient(master.addr) as of_master:
        for client in (of_slave, of_master):
            ends.add(client.ask(GET_BROKER_RUNTIME_INFO).json["table"]["commitLogMaxOffset"])
        return of_slave.ask(GET_TOPIC_CONFIG, {"topic": "Ends"}).code == 0 and len(ends) == 1


def masters(client: Client, topic: str) -> str | None:
    return client.addrs(topic).get(0)


def test_a_slave_acts_for_a_master_that_is_killed_and_unregisters_when_it_is_asked_to_end(
    namesrv: NamesrvProcess, home: Path, shell: Shell
) -> None:
    address = address_of(namesrv)
    with Broker(home, address, "broker-m", settings=ACTING) as master, namesrv.connect() as client:
        wait_until_registered(client, master.wait(), "broker-m")
        with Broker(home, address, "broker-m", 1, settings=ACTING) as slave:
            wait_until_registered(client, slave.wait(), "broker-m", 1)
            shell.mqadmin(address, "updateTopic", "-c", "DefaultCluster", "-t", "Ends", "-r", "2", "-w", "2")
            shell.messages("send", address, "Ends", "20")
            eventually(lambda: client.addrs("Ends"), lambda addrs: addrs == {0: master.addr, 1: slave.addr})
            eventually(lambda: has_all_of(slave, master), within_seconds=SYNCHRONISED_SECONDS)

            master.kill()
            eventually(lambda: masters(client, "Ends"), lambda addr: addr == slave.addr, GONE_SECONDS)
            route = client.route("Ends")
            assert route is not None
            assert [queues.perm for queues in route.queue_datas] == [4]
            assert "received 20" in shell.messages("receive", address, "Ends", "20")

            slave.terminate()
            eventually(lambda: client.route("Ends"), lambda found: found is None, GONE_SECONDS)
    reasons = [line["reason"] for line in namesrv.events("broker_removed")]
    assert reasons == ["CHANNEL_CLOSED", "UNREGISTERED"]
