"""BrokerProbe: three failed looks, a second apart, are a dead broker. One that succeeds is a living one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_agent.broker_probe import BrokerProbe, connect_to
from namesrv_common.endpoints import Endpoint
from tests.support.virtual_clock import VirtualClock, agent_timing


class Broker:
    """A broker that is there or not, as the test says, and a probe that watches it on virtual time."""

    def __init__(self, time: VirtualClock) -> None:
        self.alive = True
        self.seconds_to_answer = 0.0
        self.looks: list[float] = []
        self.told: list[tuple[str, float]] = []
        self.time = time
        self.probe = BrokerProbe(self._check, agent_timing(time))
        self.probe.on_down = lambda: self.told.append(("down", time.seconds))
        self.probe.on_up = lambda: self.told.append(("up", time.seconds))

    def _check(self) -> None:
        self.looks.append(self.time.seconds)
        self.time.advance(self.seconds_to_answer)
        if not self.alive:
            raise ConnectionRefusedError("nobody there")


@pytest.fixture
def time() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(time: VirtualClock) -> Iterator[Broker]:
    watched = Broker(time)
    watched.probe.start()
    yield watched
    watched.probe.stop()


def test_three_failures_in_a_row_are_a_dead_broker_and_one_success_revives(time: VirtualClock) -> None:
    broker = Broker(time)
    with capture_logs() as logs:
        broker.probe.start()
        time.run(5.0)
        for _ in range(2):
            broker.alive = False
            time.run(2.0)
            assert (broker.told, broker.probe.is_up) == ([], True)
            broker.alive = True
            time.run(1.0)
        broker.alive = False
        time.run(3.0)
        assert (broker.told, broker.probe.is_up) == ([("down", 1_014.0)], False)
        time.run(100.0)
        broker.alive = True
        time.run(60.0)
        broker.probe.stop()
    assert broker.told == [("down", 1_014.0), ("up", 1_115.0)]
    assert [(entry["event"], entry.get("error")) for entry in logs] == [
        ("broker_down", "nobody there"),
        ("broker_up", None),
    ]


def test_a_broker_that_is_not_there_at_first_is_up_when_it_comes(time: VirtualClock) -> None:
    broker = Broker(time)
    broker.alive = False
    assert not broker.probe.first_look()
    assert not broker.probe.is_up
    broker.probe.start()
    time.run(10.0)
    assert broker.told == []
    broker.alive = True
    time.run(1.0)
    assert broker.told == [("up", 1_011.0)]
    broker.alive = False
    time.run(3.0)
    assert broker.told[1:] == [("down", 1_014.0)]
    broker.probe.stop()


def test_a_look_that_takes_its_time_does_not_put_off_the_next_one(broker: Broker, time: VirtualClock) -> None:
    time.settle(1)
    broker.seconds_to_answer = 0.6
    time.run(3.0)
    assert broker.looks == pytest.approx([1_000.0, 1_001.0, 1_002.0, 1_003.0])


def test_without_a_probe_the_broker_is_alive_whatever_happens(time: VirtualClock) -> None:
    probe = BrokerProbe(None, agent_timing(time))
    probe.on_down = probe.on_up = pytest.fail
    probe.start()
    time.run(60.0, waiters=0)
    probe.stop()
    assert probe.is_up
    assert probe.first_look()


def test_a_tcp_probe_finds_who_listens_and_no_longer_who_has_stopped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Endpoint("127.0.0.1", listener.getsockname()[1])
        connect_to(address)
    with pytest.raises(ConnectionRefusedError):
        connect_to(address)


def test_a_tcp_probe_does_not_take_its_own_connection_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = socket.socket()
    ours.bind(("127.0.0.1", 0))
    ours.connect(ours.getsockname())  # what the system may do when it gives the client the very port it asks for
    with monkeypatch.context() as patched:
        patched.setattr("broker_agent.broker_probe.socket.create_connection", lambda *_: ours)
        with pytest.raises(ConnectionRefusedError, match="nobody listens"):
            connect_to(Endpoint("127.0.0.1", 1))
