"""While hostile clients of RocketMQ's protocol do what they can, others are answered; then nothing is held of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.attack.hostile import TOPICS, Held, lookup_while, under_attack
from tests.faults.attack.on_remoting import ATTACKS
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register

SECONDS = float(os.environ.get("FAULTS_ATTACK_SECONDS", "1"))
"""How long each attack lasts; 10 in the long profile."""
MOST_MEBIBYTES = 320
"""What the server may have grown by meanwhile: 134 MB of large frames, 64 MiB that a bomb inflates to, answers on their
way."""
MORE_DESCRIPTORS = 6
NO_SCAN = ("--scan-not-active-broker-interval-millis", "0")


class Honest:
    """A client of RocketMQ that looks up a topic, over a connection that it keeps."""

    def __init__(self, process: NamesrvProcess) -> None:
        self.port = int(process.wait_for("namesrv_started")["remoting"].rpartition(":")[2])
        self._client = RemotingClient(f"127.0.0.1:{self.port}")
        register(self._client, ["TopicTest", *(f"topic-{number}" for number in range(TOPICS))])

    def route(self) -> object | None:
        """The topic's route."""
        answer = self._client.ask(105, {"topic": "TopicTest"})
        return answer.json if answer.code == 0 else None

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def server() -> Iterator[NamesrvProcess]:
    """A server for all attacks, one after the other. Floods of brokers that leave must not be held by the guard."""
    with NamesrvProcess("--remoting-listen", "127.0.0.1:0", "--mass-loss-percent", "100", *NO_SCAN) as process:
        yield process


@pytest.fixture(scope="module")
def honest(server: NamesrvProcess) -> Iterator[Honest]:
    client = Honest(server)
    yield client
    client.close()


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_answered_on_both_protocols_while_a_client_attacks(
    server: NamesrvProcess, honest: Honest, attack: str
) -> None:
    before = Held.counting_anew(server)
    load = under_attack(honest, honest.port, attack, SECONDS, "on_remoting")
    assert load.errors == []
    assert load.seconds
    assert server._popen.poll() is None
    assert Held.of(server).peak_mebibytes - before.mebibytes < MOST_MEBIBYTES
    eventually(lambda: Held.of(server).descriptors <= before.descriptors + MORE_DESCRIPTORS)
    with server.connect() as client, RemotingClient(f"127.0.0.1:{honest.port}") as newcomer:
        assert client.route() is not None
        assert newcomer.ask(105, {"topic": "TopicTest"}).code == 0
    assert not server.events("internal_defect")


def test_brokers_of_an_attack_are_gone_with_it_and_honest_ones_stay(server: NamesrvProcess, honest: Honest) -> None:
    under_attack(honest, honest.port, "registration-flood", SECONDS, "on_remoting")
    with RemotingClient(f"127.0.0.1:{honest.port}") as client:
        eventually(lambda: list(client.ask(106).json["brokerAddrTable"]), lambda names: names == ["broker-a"])
        assert client.ask(322, broker_fields(), b"{}").fields == {"changed": "true"}
    assert lookup_while(honest, None, 0.1).errors == []
