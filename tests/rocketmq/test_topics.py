"""Ordered topics, and topics that are deleted, with real brokers."""

from __future__ import annotations

import pytest

from tests.rocketmq.conftest import Fleet, groups_of
from tests.support.programs.processes import eventually
from tests.support.rocketmq_programs.programs import Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def test_a_topic_that_is_ordered_everywhere_is_sent_and_received_in_order(fleet: Fleet, shell: Shell) -> None:
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


def test_a_topic_that_mqadmin_deletes_is_gone_and_stays_so(fleet: Fleet, shell: Shell) -> None:
    both = f"{fleet.ours};{fleet.apache}"
    shell.mqadmin(both, "updateTopic", "-c", "DefaultCluster", "-t", "Deleted")
    with fleet.namesrv.connect() as client:
        eventually(lambda: groups_of(client, "Deleted"), lambda groups: groups == {"broker-a", "broker-b"})
        assert "success" in shell.mqadmin(both, "deleteTopic", "-c", "DefaultCluster", "-t", "Deleted")
        assert client.route("Deleted") is None
        # Whatever the brokers say next, they do not say that again.
        made = shell.mqadmin(both, "updateTopic", "-c", "DefaultCluster", "-t", "MadeAfterwards")
        assert made.count("success") == 2
        eventually(lambda: groups_of(client, "MadeAfterwards"), lambda groups: groups == {"broker-a", "broker-b"})
        assert client.route("Deleted") is None
