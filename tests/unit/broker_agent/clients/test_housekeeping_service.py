from __future__ import annotations

import threading

import pytest

from broker_agent.clients.clients import ClientManagers
from broker_agent.errors import Reason
from tests.support.fakes.agent_clients import Agent, consumer, heartbeat, told
from tests.support.refusals import refuses
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

GROUP = "group"


def producer_groups(agent: Agent) -> set[str]:
    return set(agent.tables.producers.groups)


def ids(agent: Agent, group: str = GROUP) -> list[str]:
    found = agent.tables.consumers.group(group)
    return found.client_ids if found else []


@pytest.mark.parametrize("event", ["on_channel_close", "on_channel_exception", "on_channel_idle"])
def test_the_end_of_a_channel_for_any_reason_removes_its_client_everywhere_and_tells_the_others(event: str) -> None:
    agent = Agent()
    gone, peer = agent.open(), agent.open()
    agent.beat(gone, "gone", ["producers"], [consumer(GROUP), consumer("alone")])
    agent.beat(peer, "peer", [], [consumer(GROUP)])
    agent.managers.processor.register_filter_server(gone.channel_id, "127.0.0.1:1", "filter:1")
    peer.take()
    getattr(agent.managers.housekeeping, event)(gone)
    assert agent.tables.producers.groups == ()
    assert agent.tables.consumers.groups == (GROUP,)
    assert agent.managers.filter_servers() == ()
    assert ids(agent) == ["peer"]
    assert told(peer) == [GROUP]
    with refuses(Reason.CHANNEL_GONE):
        agent.beat(gone, "gone", ["producers"])


def test_the_late_end_of_an_old_channel_does_not_touch_the_client_on_its_new_one() -> None:
    agent = Agent()
    old, new = agent.open(), agent.open()
    for channel in (old, new):
        agent.beat(channel, "client", ["producers"], [consumer(GROUP)])
    agent.managers.housekeeping.on_channel_close(old)
    assert ids(agent) == ["client"]
    assert [info.channel for info in agent.tables.producers.members("producers")] == [new]


def test_a_silent_client_is_told_that_its_channel_is_idle_and_leaves_after_120_s() -> None:
    agent = Agent()
    silent, peer = agent.open(), agent.open()
    agent.beat(silent, "silent", ["producers"], [consumer(GROUP)])
    for _ in range(12):
        agent.beat(peer, "peer", [], [consumer(GROUP)])
        agent.pass_time(10)
    assert ids(agent) == ["peer", "silent"]
    peer.take()
    silent.take()
    agent.beat(peer, "peer", [], [consumer(GROUP)])
    agent.pass_time(10)
    assert ids(agent) == ["peer"]
    assert agent.tables.producers.groups == ()
    assert told(silent) == ["REASON_IDLE"]
    assert told(peer) == [GROUP]


def test_a_client_without_a_channel_leaves_by_its_timeout_only() -> None:
    agent = Agent()
    peer = agent.open()
    agent.beat(None, "plain", ["producers"], [consumer(GROUP)])
    for _ in range(13):
        agent.beat(peer, "peer", [], [consumer(GROUP)])
        assert "plain" in ids(agent)
        agent.pass_time(10)
    assert ids(agent) == ["peer"]
    assert agent.tables.producers.groups == ()


def test_a_group_that_a_living_client_names_no_more_is_left_and_its_channel_stays() -> None:
    agent = Agent()
    channel = agent.open()
    agent.beat(channel, "client", [], [consumer(GROUP), consumer("dropped")])
    for _ in range(13):
        agent.beat(channel, "client", [], [consumer(GROUP)])
        agent.pass_time(10)
    assert agent.tables.consumers.groups == (GROUP,)
    assert channel.is_active


def test_a_channel_that_was_opened_and_never_used_is_closed() -> None:
    agent = Agent()
    channel = agent.open()
    agent.pass_time(130)
    assert told(channel) == ["REASON_IDLE"]
    assert len(agent.tables.channels) == 0


def test_with_notices_switched_off_nobody_is_told_until_they_are_switched_on() -> None:
    agent = Agent(notify_consumer_ids_changed_enable=False)
    first, second, third = agent.open(), agent.open(), agent.open()
    agent.beat(first, "first", [], [consumer(GROUP)])
    agent.beat(second, "second", [], [consumer(GROUP)])
    agent.managers.housekeeping.on_channel_close(second)
    assert told(first) == []
    agent.tables.listener.notify_consumer_ids_changed_enable = True
    agent.beat(third, "third", [], [consumer(GROUP)])
    assert told(first) == [GROUP]


def test_after_a_stall_of_the_agent_itself_clients_have_a_minute_to_be_heard() -> None:
    agent = Agent()
    heard, silent = agent.open(), agent.open()
    for channel in (heard, silent):
        agent.beat(channel, channel.channel_id, [channel.channel_id])
    agent.pass_time(10)
    agent.clock.advance(3_600)
    agent.pass_time(10)
    assert producer_groups(agent) == {heard.channel_id, silent.channel_id}
    agent.beat(heard, heard.channel_id, [heard.channel_id])
    agent.pass_time(50)
    assert producer_groups(agent) == {heard.channel_id, silent.channel_id}
    agent.pass_time(10)
    assert producer_groups(agent) == {heard.channel_id}


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_jump_of_the_wall_clock_removes_nobody_and_keeps_nobody(jump: float) -> None:
    agent = Agent()
    agent.beat(None, "plain", ["producers"])
    agent.clock.wall_ahead += jump
    agent.pass_time(120)
    assert producer_groups(agent) == {"producers"}
    agent.pass_time(10)
    assert producer_groups(agent) == set()


def test_channels_that_the_agent_ends_at_its_stop_remove_nobody_and_tell_no_listener() -> None:
    agent = Agent()
    channel = agent.open()
    agent.beat(channel, "client", ["producers"], [consumer(GROUP)])
    agent.managers.processor.register_filter_server(channel.channel_id, "127.0.0.1:1", "filter:1")
    changes: list[tuple[str, ...]] = []
    agent.managers.on_filter_servers_change(lambda: changes.append(agent.managers.filter_servers()))
    agent.managers.stop()
    agent.managers.housekeeping.on_channel_close(channel)
    assert ids(agent) == ["client"]
    assert agent.managers.filter_servers() == ("filter:1",)
    assert changes == []


def test_a_defect_in_one_part_of_the_scan_spares_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    agent.beat(None, "plain", ["producers"])
    agent.managers.processor.register_filter_server(None, "127.0.0.1:1", "filter:1")

    def defect() -> int:
        raise RuntimeError("defect")

    monkeypatch.setattr(agent.tables.producers, "scan_not_active_channel", defect)
    agent.pass_time(130)
    assert agent.managers.filter_servers() == ()


def test_the_thread_scans_first_after_10_s_and_then_every_10_s(monkeypatch: pytest.MonkeyPatch) -> None:
    time = VirtualClock()
    managers = ClientManagers(agent_timing(time), wait=time.wait)
    scans: list[float] = []
    monkeypatch.setattr(managers.tables.filters, "clean", lambda: scans.append(time.seconds))
    started = time.seconds
    managers.start()
    try:
        time.run(9.9)
        assert scans == []
        time.run(25)
    finally:
        managers.stop()
    assert [moment - started for moment in scans] == [10.0, 20.0, 30.0]


def test_heartbeats_ends_of_channels_and_scans_in_many_threads_leave_nothing_behind() -> None:
    clock = VirtualClock()
    managers = ClientManagers(agent_timing(clock))
    failures: list[BaseException] = []

    def live(number: int) -> None:
        try:
            for _ in range(50):
                channel = managers.tables.channels.open("holder", "127.0.0.1:1", lambda: None)
                for _ in range(3):
                    data = heartbeat(f"client-{number}", ["producers"], [consumer(GROUP), consumer(f"own-{number}")])
                    managers.processor.heart_beat(channel.channel_id, "127.0.0.1:1", clock.seconds, data)
                managers.housekeeping.scan()
                managers.housekeeping.on_channel_close(channel)
        except BaseException as failure:  # noqa: BLE001 - shown by the assertion
            failures.append(failure)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert managers.tables.consumers.groups == managers.tables.producers.groups == ()
    assert len(managers.tables.channels) == 0
