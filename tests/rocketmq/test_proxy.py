"""RocketMQ 5's proxy in cluster mode on this name server, and its client that speaks gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.rocketmq_programs.maven import GRPC_CLIENT
from support.rocketmq_programs.programs import Proxy, Shell
from tests.rocketmq.conftest import Fleet

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def test_a_grpc_client_sends_and_receives_through_a_proxy(fleet: Fleet, shell: Shell, home: Path) -> None:
    # The proxy takes messages from brokers of 5.
    made = shell.mqadmin(fleet.ours, "updateTopic", "-b", fleet.new.addr, "-t", "ByProxy", "-r", "2", "-w", "2")
    assert "success" in made
    with Proxy(home / "proxy", fleet.ours) as proxy, Shell(home / "grpc-shell", release=GRPC_CLIENT) as client:
        proxy.wait()
        assert "received 10" in client.grpc_messages(proxy.addr, "ByProxy", "10")
