"""RocketMQ 5's proxy in cluster mode on this name server, and its client that speaks gRPC."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rocketmq.conftest import Pair
from tests.support.rocketmq_programs.maven import GRPC_CLIENT
from tests.support.rocketmq_programs.programs import Broker, Proxy, Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def test_a_grpc_client_sends_and_receives_through_a_proxy(pair: Pair, broker: Broker, shell: Shell, home: Path) -> None:
    made = shell.mqadmin(pair.both, "updateTopic", "-b", broker.addr, "-t", "ByProxy", "-r", "2", "-w", "2")
    assert "success" in made
    assert "success" in shell.mqadmin(pair.both, "updateSubGroup", "-b", broker.addr, "-g", "grpc-consumers")
    with Proxy(home / "proxy", pair.both) as proxy, Shell(home / "grpc-shell", release=GRPC_CLIENT) as client:
        proxy.listening()
        assert "received 10" in client.grpc_messages(proxy.addr, "ByProxy", "10")
