"""Producers, push consumers and brokers of both versions, topics that brokers make, and 5's proxy in cluster mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rocketmq.conftest import Pair, Running, groups_of
from tests.support.programs.processes import eventually
from tests.support.rocketmq_programs.maven import GRPC_CLIENT
from tests.support.rocketmq_programs.programs import Broker, Proxy, Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
COUNT = 40


@pytest.mark.parametrize(("producer", "consumer"), [("new", "old"), ("old", "new")])
def test_what_one_version_sends_the_other_receives_from_brokers_of_both(
    fleet: Running, shell: Shell, old_shell: Shell, producer: str, consumer: str
) -> None:
    shells = {"new": shell, "old": old_shell}
    topic = f"From-{producer}-to-{consumer}"
    made = shell.mqadmin(fleet.ours, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "2", "-w", "2")
    assert made.count("success") == 2
    with fleet.namesrv.connect() as client:
        eventually(lambda: groups_of(client, topic), lambda groups: groups == {"broker-a", "broker-b"})
    assert f"sent {COUNT}" in shells[producer].messages("send", fleet.ours, topic, str(COUNT))
    assert f"received {COUNT}" in shells[consumer].messages("receive", fleet.ours, topic, str(COUNT))


def test_a_topic_that_is_ordered_everywhere_is_sent_and_received_in_order(fleet: Running, shell: Shell) -> None:
    made = shell.mqadmin(
        fleet.ours, "updateTopic", "-c", "DefaultCluster", "-t", "Ordered", "-r", "2", "-w", "2", "-o", "true"
    )
    assert "set cluster orderConf" in made, made
    shell.mqadmin(fleet.ours, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    try:
        with fleet.namesrv.connect() as client:
            eventually(lambda: groups_of(client, "Ordered"), lambda groups: groups == {"broker-a", "broker-b"})
            route = client.route("Ordered")
        assert route is not None
        assert sorted(route.order_topic_conf.split(";")) == ["broker-a:2", "broker-b:2"]
        assert "received in order 30" in shell.messages("orderly", fleet.ours, "Ordered", "30")
    finally:
        shell.mqadmin(fleet.ours, "updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
        shell.mqadmin(fleet.ours, "deleteKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Ordered")


def test_a_grpc_client_sends_and_receives_through_a_proxy(pair: Pair, broker: Broker, shell: Shell, home: Path) -> None:
    made = shell.mqadmin(pair.both, "updateTopic", "-b", broker.addr, "-t", "ByProxy", "-r", "2", "-w", "2")
    assert "success" in made
    assert "success" in shell.mqadmin(pair.both, "updateSubGroup", "-b", broker.addr, "-g", "grpc-consumers")
    with Proxy(home / "proxy", pair.both) as proxy, Shell(home / "grpc-shell", release=GRPC_CLIENT) as client:
        proxy.listening()
        assert "received 10" in client.grpc_messages(proxy.addr, "ByProxy", "10")
