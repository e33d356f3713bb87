from __future__ import annotations

import threading

import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.route_data_pb2 import REMOVAL_REASON_UNREGISTERED as UNREGISTERED
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from broker_agent import channel
from broker_agent.channel import ConnectionOptions
from broker_agent.errors import NameServerError
from broker_agent.name_server import NamesrvTarget
from broker_agent.timing import Timing
from namesrv_common.endpoints import Endpoint
from namesrv_common.server.call_metrics import ClientCallMetrics
from namesrv_common.server.tracing import traced_calls
from tests.support.agents.fan_out_harness import BROKER, IMPATIENT, FanOut, registration, target_of
from tests.support.agents.fixtures import StartNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually


CLOSING = pb.OpenChannelResponse(closing=pb.ChannelClosing(reason=pb.ChannelClosing.REASON_IDLE))
OPENED = pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id="other"))


@pytest.mark.parametrize("event", [CLOSING, OPENED], ids=["closing", "opened twice"])
def test_a_channel_that_ends_or_is_opened_twice_is_opened_again(
    name_server: StartNameServer, event: pb.OpenChannelResponse
) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        server.send(event)
        fan_out.wait_until_wanted(2)
    assert server.channels_opened == 2


def test_an_event_that_is_not_known_is_passed_over(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        fan_out.register(force=True)
        server.send(pb.OpenChannelResponse())
        server.send(pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged()))
        eventually(lambda: fan_out.targets[0].state.known.has_news)
    assert server.channels_opened == 1


def test_a_channel_that_stays_silent_is_opened_again(
    name_server: StartNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "OPENED_SECONDS", 0.1)
    server = name_server()
    server.silent_channels = 1
    with FanOut(server) as fan_out:
        assert fan_out.targets[0].status().channel_open
    assert server.channels_opened == 2


def test_texts_of_an_event_are_cut(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out, capture_logs() as lines:
        fan_out.register(force=True)
        lowest = pb.MinBrokerIdChanged(broker_name="b" * 1_000, min_broker_addr="a" * 1_000)
        server.send(pb.OpenChannelResponse(min_broker_id_changed=lowest))
        server.end_channels()
        fan_out.wait_until_wanted(2)
        details = [event.detail for event in fan_out.targets[0].status().events]
    assert f"{'b' * 255}: 0 at {'a' * 260}" in details
    assert [line["addr"] for line in lines if line["event"] == "min_broker_id_changed"] == ["a" * 260]


def test_a_channel_that_is_gone_is_replaced_in_the_same_round(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out:
        server.forget_channels()
        assert len(fan_out.register(force=True)) == 1
    assert [request.channel_id for request in server.registrations] == ["ns-1", "ns-2"]


def test_without_a_channel_a_registration_waits_the_connect_timeout() -> None:
    nobody = target_of(Endpoint("127.0.0.1", 1), IMPATIENT)
    try:
        with pytest.raises(NameServerError, match="no channel is open: UNAVAILABLE: "):
            nobody.register(registration(), Timing().clock() + 60)
    finally:
        nobody.close()
    assert not nobody.status().channel_open


def test_close_ends_a_call_in_flight_and_a_wait_for_the_channel_at_once(name_server: StartNameServer) -> None:
    server = name_server()
    server.hang()
    options = ConnectionOptions(60_000, 5_000, 5_000)
    targets = [target_of(e, options=options) for e in (server.endpoint, Endpoint("127.0.0.1", 1))]
    ended = threading.Semaphore(0)

    def register(target: NamesrvTarget) -> None:
        with pytest.raises(NameServerError):
            target.register(registration(), Timing().clock() + 60)
        ended.release()

    threads = [threading.Thread(target=register, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    server.wait_until(lambda: len(server.registrations) == 1)
    for target in targets:
        target.close()
    for thread in threads:
        assert ended.acquire(timeout=TIMEOUT)
        thread.join(TIMEOUT)


def test_a_call_after_close_fails_as_cancelled_with_observers() -> None:
    observers = [ClientCallMetrics(CollectorRegistry()).of("ns"), traced_calls(NoOpTracer(), "ns")]
    target = target_of(Endpoint("127.0.0.1", 1), observers=observers)
    target.close()
    with pytest.raises(NameServerError, match="CANCELLED"):
        target.unregister(BROKER, UNREGISTERED, Timing().clock() + TIMEOUT)


def test_no_call_is_made_when_its_time_is_over(name_server: StartNameServer) -> None:
    server = name_server()
    with FanOut(server) as fan_out, pytest.raises(NameServerError, match="DEADLINE_EXCEEDED"):
        fan_out.targets[0].unregister(BROKER, UNREGISTERED, fan_out.timing.clock())
    assert server.unregistrations == []


def test_a_change_of_state_is_logged_once_and_not_each_period(name_server: StartNameServer) -> None:
    server = name_server()
    with capture_logs() as logs, FanOut(server) as fan_out:
        for _ in range(3):
            fan_out.register(force=True)
        server.stop()
        for _ in range(2):
            fan_out.register(force=True, timeout_seconds=0.2)
        restarted = name_server("new", server.endpoint.port)
        restarted.wait_until(lambda: len(restarted.open_channels) == 1)
        fan_out.wait_until_wanted(2)
        fan_out.register(force=True)
    states = [entry["event"] for entry in logs if entry["log_level"] in ("info", "warning")]
    assert states == ["channel_opened", "registered", "not_registered", "channel_opened", "registered"]
