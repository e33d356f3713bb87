"""RocketMQ as it is, on this name server: brokers, producers, consumers and mqadmin from Maven Central."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.processes import NamesrvProcess, eventually
from support.rocketmq import RemotingClient
from tests.rocketmq.programs import Broker, jars, java, mqadmin, send_and_receive

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
ALLOWED = ("--remoting-listen", "127.0.0.1:0", "--remoting-allow", "lookups,registrations,operators")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    java()
    jars("5.5.0")
    with NamesrvProcess(*ALLOWED, "--data-dir", str(tmp_path_factory.mktemp("data"))) as process:
        yield process


@pytest.fixture(scope="module")
def address(namesrv: NamesrvProcess) -> str:
    return str(namesrv.wait_for("namesrv_started")["remoting"])


@pytest.fixture(scope="module")
def master(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("master"), address) as broker:
        broker.wait()
        with RemotingClient(address) as client:
            eventually(lambda: client.ask(105, {"topic": "TBW102"}).code, lambda code: code == 0, 60)
        yield broker


def test_a_broker_registers_with_all_its_topics(master: Broker, namesrv: NamesrvProcess) -> None:
    with namesrv.connect() as client:
        assert client.addrs("TBW102") == {0: master.addr}
        assert client.addrs("broker-a") == {0: master.addr}
    assert not namesrv.events("topics_skipped")
    assert not namesrv.events("internal_defect")


def test_a_producer_makes_a_topic_by_sending_and_a_consumer_receives_all(
    master: Broker, address: str, tmp_path: Path
) -> None:
    said = send_and_receive(tmp_path, address, "MadeBySending", 50)
    assert (said.count("SEND_OK"), "received 50 of 50" in said) == (50, True)
    assert master.addr


def test_mqadmin_makes_shows_and_deletes_a_topic(
    master: Broker, namesrv: NamesrvProcess, address: str, tmp_path: Path
) -> None:
    said = mqadmin(
        tmp_path, "updateTopic", "-n", address, "-c", "DefaultCluster", "-t", "ByAdmin", "-r", "2", "-w", "2"
    )
    assert "success" in said
    with namesrv.connect() as client:
        eventually(lambda: client.addrs("ByAdmin"), lambda addrs: addrs == {0: master.addr})
    assert f'"{master.addr}"' in mqadmin(tmp_path, "topicRoute", "-n", address, "-t", "ByAdmin")
    assert "ByAdmin" in mqadmin(tmp_path, "topicList", "-n", address)
    assert master.addr in mqadmin(tmp_path, "clusterList", "-n", address)
    assert "success" in mqadmin(tmp_path, "deleteTopic", "-n", address, "-c", "DefaultCluster", "-t", "ByAdmin")
    with namesrv.connect() as client:
        assert client.route("ByAdmin") is None


def test_mqadmin_reads_and_changes_permissions_kv_and_settings(master: Broker, address: str, tmp_path: Path) -> None:
    assert "wipe write perm of broker[broker-a]" in mqadmin(tmp_path, "wipeWritePerm", "-n", address, "-b", "broker-a")
    assert "add write perm of broker[broker-a]" in mqadmin(tmp_path, "addWritePerm", "-n", address, "-b", "broker-a")
    for _ in range(2):
        said = mqadmin(tmp_path, "updateKvConfig", "-n", address, "-s", "NS", "-k", "key", "-v", "value")
        assert "success" in said
    assert "success" in mqadmin(tmp_path, "deleteKvConfig", "-n", address, "-s", "NS", "-k", "key")
    assert "orderMessageEnable" in mqadmin(tmp_path, "getNamesrvConfig", "-n", address)
    assert "black list" in mqadmin(tmp_path, "updateNamesrvConfig", "-n", address, "-k", "kvConfigPath", "-v", "/x")
    assert master.addr


def test_a_slave_that_is_killed_leaves_and_a_master_that_ends_unregisters(
    namesrv: NamesrvProcess, address: str, tmp_path: Path
) -> None:
    with Broker(tmp_path, address, "broker-b") as broker, namesrv.connect() as client:
        broker.wait()
        eventually(lambda: client.addrs("broker-b"), lambda addrs: addrs == {0: broker.addr}, 60)
        with Broker(tmp_path, address, "broker-b", 1) as slave:
            slave.wait()
            both = {0: broker.addr, 1: slave.addr}
            eventually(lambda: client.addrs("broker-b"), lambda addrs: addrs == both, 60)
            slave.kill()
            eventually(lambda: client.addrs("broker-b"), lambda addrs: addrs == {0: broker.addr}, 5)
        broker.terminate()
        eventually(lambda: client.route("broker-b"), lambda route: route is None, 5)
    reasons = [line["reason"] for line in namesrv.events("broker_removed")]
    assert reasons[-2:] == ["CHANNEL_CLOSED", "UNREGISTERED"]
