"""A broker written in Go from protos/ alone, without an agent, at a real name server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from namesrv_api.v1 import route_service_pb2 as pb

from tests.interop.conftest import Built
from tests.interop.programs import INSTALL_SECONDS
from tests.support.programs.processes import Client, NamesrvProcess, eventually

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

ADDR = "127.0.0.1:10911"
BROKER = ("go-broker", ADDR, "T1", "T2")


@contextmanager
def watching_both_topics(client: Client, reason: str) -> Iterator[None]:
    """A watch that is told during the block that both topics went with the broker, and why."""
    asked = pb.WatchTopicRoutesRequest(topics=["T1", "T2"])
    watch: Any = client.routes.WatchTopicRoutes(iter([asked]), timeout=Client.TIMEOUT)
    assert {change.topic for change in next(watch).changes if change.HasField("route")} == {"T1", "T2"}
    yield
    removal = pb.BrokerRemoval(
        cluster_name="DefaultCluster",
        broker_name="go-broker",
        broker_id=0,
        broker_addr=ADDR,
        reason=f"REMOVAL_REASON_{reason}",
    )
    assert {change.topic: list(change.removals) for change in next(watch).changes} == {"T1": [removal], "T2": [removal]}
    watch.cancel()


def test_a_broker_without_an_agent_registers_and_unregisters_when_ended(
    built: Built, namesrv: NamesrvProcess, client: Client
) -> None:
    with built("go").start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert broker.next_line()["event"]["opened"]["channel_id"]
        registered = broker.next_line()["registered"]
        assert registered["changed"] is True
        queried = broker.next_line()["data_version_queried"]
        assert queried["changed"] is False
        assert queried["data_version"]["counter"] == "1"
        assert (client.addrs("T1"), client.addrs("T2")) == ({0: ADDR}, {0: ADDR})
        with watching_both_topics(client, "UNREGISTERED"):
            broker.terminate()
            assert broker.next_line()["unregistered"]["removed"] is True
            assert broker.end() == (0, "")
        assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_killed_broker_without_an_agent_leaves_when_its_channel_ends(
    built: Built, namesrv: NamesrvProcess, client: Client
) -> None:
    with built("go").start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert eventually(lambda: client.addrs("T1")) == {0: ADDR}
        with watching_both_topics(client, "CHANNEL_CLOSED"):
            broker.kill()
        assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_broker_without_an_agent_ends_with_the_reason_when_it_is_refused(
    built: Built, namesrv: NamesrvProcess
) -> None:
    with built("go").start("broker", str(namesrv.endpoint), "go\tbroker", *BROKER[1:]) as broker:
        assert "opened" in broker.next_line()["event"]
        code, error = broker.end()
    assert (code, error.split(":")[0]) == (1, "InvalidArgument INVALID_FIELD")
