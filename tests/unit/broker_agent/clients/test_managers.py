"""Clients of an agent on virtual time, with upstream's scenarios, and the rules on what they send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients import client_service, limits
from broker_agent.errors import Reason
from namesrv_common.server.shares import Sharer
from tests.support.fakes.agent_clients import GROUP, SILENCE, Agent, consumer, sql, tags, told
from tests.support.refusals import refuses


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_a_heartbeat_over_one_limit_changes_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CLIENTS_PER_GROUP", 1)
    peer, channel = agent.open(), agent.open()
    agent.beat(channel, "client", ["full"])
    assert agent.leave(channel)  # somebody who was in it takes a free place, too
    agent.beat(peer, "peer", ["full"], [consumer("full")])
    peer.take()
    for producers, consumers in ((["new"], ["new", "full"]), (["new", "full"], ["new"])):
        with refuses(Reason.LIMIT_EXCEEDED):
            agent.beat(channel, "client", producers, [consumer(group) for group in consumers])
    assert agent.groups() == ({"full"}, {"full"})
    assert told(peer) == []


def test_scenario_73_a_client_leaves_the_group_that_it_names_or_all(agent: Agent) -> None:
    channel = agent.open()
    agent.beat(channel, "client", ["p1", "p2"], [consumer("c1"), consumer("c2")])
    assert agent.leave(channel, producer_group="p1")
    assert not agent.leave(channel, producer_group="p1")
    assert agent.leave(channel, consumer_group="c1")
    assert agent.groups() == ({"p2"}, {"c2"})
    assert agent.leave(channel)
    assert agent.groups() == (set(), set())
    assert channel.is_active
    agent.managers.on_channel_close(channel)
    assert not agent.leave(channel)  # no error: its end has removed everything
    agent.beat(None, producers=["p1"])
    assert agent.leave(None)
    assert agent.groups() == (set(), set())


def test_silent_clients_and_groups_that_are_not_named_go_after_120_s(agent: Agent) -> None:
    silent, peer, unused = agent.open(), agent.open(), agent.open()
    agent.beat(silent, "silent", ["producers"], [consumer()])
    agent.beat(peer, "peer", [], [consumer("dropped")])
    for _ in range(12):
        agent.beat(peer, "peer", [], [consumer()])
        agent.pass_time(10)
    assert agent.ids() == ["peer", "silent"]
    assert agent.groups() == ({"producers"}, {GROUP, "dropped"})
    for channel in (silent, peer):
        channel.take()
    agent.beat(peer, "peer", [], [consumer()])
    agent.pass_time(10)
    assert agent.groups() == (set(), {GROUP})
    assert agent.ids() == ["peer"]
    assert told(silent) == told(unused) == ["REASON_IDLE"]
    assert told(peer) == [GROUP]
    assert len(agent.managers.channels) == 1


def test_after_a_stall_of_the_agent_clients_have_a_minute(agent: Agent) -> None:
    heard, silent = agent.open(), agent.open()
    for channel, group in ((heard, "heard"), (silent, "silent")):
        agent.beat(channel, group, [group])
    agent.pass_time(10)
    agent.clock.advance(3_600)
    agent.pass_time(10)
    assert agent.groups()[0] == {"heard", "silent"}
    agent.beat(heard, "heard", ["heard"])
    agent.pass_time(50)
    assert agent.groups()[0] == {"heard", "silent"}
    agent.pass_time(10)
    assert agent.groups()[0] == {"heard"}


def test_a_scan_comes_every_10_s_also_after_a_defect(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    start, scans = agent.clock.seconds, list[float]()

    def clean() -> None:
        scans.append(agent.clock.seconds)
        if len(scans) == 1:
            raise RuntimeError("a defect")
        if len(scans) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", agent.clock.sleep)
    monkeypatch.setattr(agent.managers.filters, "clean", clean)
    with structlog.testing.capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        asyncio.run(agent.managers.scan_periodically())
    assert scans == [start + 10, start + 20, start + 30]
    assert [line["event"] for line in logs] == ["client_scan_failed"]


@pytest.mark.parametrize("jump", [-1e6, 0.0, 1e6])
def test_scenarios_69_and_76_clients_silent_for_120_s_are_scanned_away(agent: Agent, jump: float) -> None:
    for _ in range(2):
        agent.beat(None, "plain", [GROUP], [consumer()])
    agent.clock.wall_ahead += jump
    agent.pass_time(SILENCE)
    assert agent.groups() == ({GROUP}, {GROUP})
    agent.clock.advance(0.001)
    agent.managers.scan()
    assert agent.groups() == (set(), set())


def test_scenario_70_a_second_channel_stays_when_the_first_expires(agent: Agent) -> None:
    agent.beat(agent.open(), producers=[GROUP], consumers=[consumer()])
    agent.clock.advance(SILENCE)
    second = agent.open()
    agent.beat(second, producers=[GROUP], consumers=[consumer()])
    assert agent.ids() == ["client"], "it is listed once"
    agent.clock.advance(1)
    assert agent.managers.producers.scan_not_active_channel() == 1
    assert agent.managers.consumers.scan_not_active_channel() == 1
    assert [info.channel for info in agent.managers.producers.members(GROUP)] == [second]
    assert agent.ids() == ["client"]


def test_scenario_71_the_end_of_a_channel_ends_all_its_memberships(agent: Agent) -> None:
    gone, peer = agent.open(), agent.open()
    agent.beat(gone, "gone", [GROUP, "alone"], [consumer(), consumer("alone")])
    agent.beat(peer, "peer", [GROUP], [consumer()])
    agent.serve_filters(gone, "filter:1")
    peer.take()
    assert agent.managers.producers.do_channel_close_event(gone) == 2
    assert agent.managers.producers.do_channel_close_event(gone) == 0
    agent.managers.on_channel_close(gone)
    assert agent.groups() == ({GROUP}, {GROUP})
    assert agent.managers.filter_servers.addresses == ()
    assert [info.client_id for info in agent.managers.producers.members(GROUP)] == agent.ids() == ["peer"]
    assert told(peer) == [GROUP]
    with refuses(Reason.CHANNEL_GONE):
        agent.beat(gone, "gone", ["producers"])


def test_groups_take_bytes_up_to_the_limit_of_which_one_address_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 4 * limits.MEMBER_BYTES)
    agent = Agent()
    flood, other = agent.open(Sharer("10.0.0.1")), agent.open(Sharer("10.0.0.2"))
    for sharer in (flood.sharer, other.sharer):  # renewed, from another address too, they count once: at the first
        agent.beat(flood, producers=["one", "two"], sharer=sharer)
    with refuses(Reason.LIMIT_EXCEEDED, match=r"bytes of producer groups: 3072 is over the limit of 2048 for 10\.0"):
        agent.beat(flood, producers=["three"])
    agent.beat(other, producers=["three", "four"])
    with refuses(Reason.LIMIT_EXCEEDED, match="bytes of producer groups: 5120 is over the limit of 4096 for all"):
        agent.beat(agent.open(), producers=["five"])
    agent.managers.producers.do_channel_close_event(flood)
    agent.beat(flood, producers=["three", "four"])
    assert agent.managers.producers.membership_count == 4


@pytest.mark.parametrize(
    ("now", "changed", "kept"),
    [
        ([tags("A"), tags("B")], True, {"A": "old", "B": "*"}),
        ([], True, {}),
        ([tags("B")], True, {"B": "*"}),
        ([tags("A", 4, "older")], False, {"A": "old"}),
        ([tags("A", 5, "same")], False, {"A": "old"}),
        ([tags("A", 6, "newer")], False, {"A": "newer"}),
    ],
)
def test_another_topic_is_a_change_and_a_newer_subscription_is_none(
    agent: Agent, now: list[pb.SubscriptionData], changed: bool, kept: dict[str, str]
) -> None:
    channel, data = agent.open(), consumer(GROUP, tags("A", 5, "old"))
    agent.beat(channel, consumers=[data])
    channel.take()
    del data.subscriptions[:]
    data.subscriptions.extend(now)
    expected = [GROUP] if changed else []
    assert agent.beat(channel, consumers=[data]) == told(channel) == expected
    info = agent.managers.consumers.group(GROUP)
    assert info is not None
    assert {topic: subscription.expression for topic, subscription in info.subscriptions.items()} == kept


def test_another_client_id_replaces_a_consumer_and_renews_a_producer(agent: Agent) -> None:
    peer, channel = agent.open(), agent.open()
    agent.beat(peer, "peer", consumers=[consumer()])
    agent.beat(channel, "first", [GROUP], [consumer()])
    peer.take()
    agent.clock.advance(SILENCE)
    assert agent.beat(channel, "second", [GROUP], [consumer()]) == [GROUP]
    assert agent.ids() == ["peer", "second"]
    assert told(peer) == [GROUP]
    agent.clock.advance(SILENCE)
    assert agent.managers.producers.scan_not_active_channel() == 0
    assert [info.client_id for info in agent.managers.producers.members(GROUP)] == ["first"]


def test_scenario_75_a_broadcasting_group_comes_and_goes_without_a_notice(agent: Agent) -> None:
    data = consumer(message_model=pb.MESSAGE_MODEL_BROADCASTING)
    channels = [agent.open() for _ in range(3)]
    for channel in channels:
        agent.beat(channel, channel.channel_id, consumers=[data])
    assert len(agent.ids()) == 3
    agent.leave(channels[0], consumer_group=GROUP)
    agent.managers.consumers.do_channel_close_event(channels[1])
    agent.clock.advance(SILENCE + 1)
    agent.managers.consumers.scan_not_active_channel()
    assert agent.managers.consumers.group(GROUP) is None
    assert [told(channel) for channel in channels] == [[], [], []]


def test_subscriptions_take_bytes_of_the_address_that_sent_them_last(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * limits.MEMBER_BYTES + 2 * limits.SUBSCRIPTION_BYTES + 20
    monkeypatch.setattr(limits, "MAX_GROUP_BYTES", 2 * most)
    agent = Agent()
    flood, other = agent.open(Sharer("10.0.0.1")), agent.open(Sharer("10.0.0.2"))
    large, larger = tags("T", 1, "x" * 9), tags("T", 2, "x" * 10)
    for _ in range(2):  # renewed, they count once
        agent.beat(flood, consumers=[consumer("one", large), consumer("two", large)])
    with refuses(Reason.LIMIT_EXCEEDED, match=rf"bytes of consumer groups: {most + 1} is over the limit of {most} for"):
        agent.beat(flood, consumers=[consumer("one", larger)])
    agent.beat(other, consumers=[consumer("one", larger)])
    for sharer in (flood.sharer, other.sharer):  # its member counts where it joined, all the same
        agent.beat(flood, consumers=[consumer("two", larger)], sharer=sharer)
    for channel in (flood, other):
        agent.managers.on_channel_close(channel)
    for address in ("10.0.0.1", "10.0.0.2"):  # each has its whole half again
        groups = [consumer(f"{address} {number}", larger) for number in (1, 2)]
        groups[0].subscriptions[0].expression = "x" * 8
        agent.beat(agent.open(Sharer(address)), consumers=groups)


IDLE, SHUTDOWN = pb.ClientChannelClosing.REASON_IDLE, pb.ClientChannelClosing.REASON_SHUTDOWN


def test_notices_are_one_for_each_group_and_too_many_cut_a_slow_reader(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PENDING_NOTICES", 2)
    channel = agent.open()
    for groups in (["one", "two", "one", "two", "one"], ["one"]):
        for group in groups:
            channel.notify_consumer_ids_changed(group)
        assert channel.pending.is_set()
        assert told(channel) == groups[:2]
        assert not channel.pending.is_set()
    for group in ("one", "two", "one"):
        channel.notify_consumer_ids_changed(group)
    assert not channel.ending.is_set()
    channel.notify_consumer_ids_changed("three")
    assert channel.ending.is_set()
    with refuses(Reason.SLOW_READER):
        channel.take()


def test_a_closing_channel_tells_its_reason_and_takes_no_more_calls(agent: Agent) -> None:
    channel = agent.open()
    channel.notify_consumer_ids_changed("one")
    channel.close(IDLE)
    channel.close(SHUTDOWN)
    assert told(channel) == ["REASON_IDLE"]
    assert channel.ending.is_set()
    with refuses(Reason.CHANNEL_GONE):
        agent.beat(channel)


def test_channels_are_opened_up_to_the_limit_of_which_one_address_has_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CHANNELS", 4)
    agent, one, other = Agent(), Sharer("10.0.0.1"), Sharer("10.0.0.2")
    first, _second = agent.open(one), agent.open(one)
    with refuses(Reason.LIMIT_EXCEEDED, match=r"open client channels: 3 is over the limit of 2 for 10\.0\.0\.1"):
        agent.open(one)
    _third, _fourth = agent.open(other), agent.open(other)
    with refuses(Reason.LIMIT_EXCEEDED, match="open client channels: 5 is over the limit of 4"):
        agent.open()
    assert agent.managers.channels.end(first)
    assert not agent.managers.channels.end(first)
    agent.open(one)


def test_filter_servers_are_sorted_up_to_the_limit_and_leave_after_30_s(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_FILTER_SERVERS", 4)
    channel = agent.open()
    for addr in ("silent:1", "alive:1"):
        agent.serve_filters(None, addr)
    agent.serve_filters(agent.open(), "silent:1")
    for addr in ("c:1", "d:1"):
        agent.serve_filters(channel, addr)
    with refuses(Reason.LIMIT_EXCEEDED, match="filter servers: 5 is over the limit of 4"):
        agent.serve_filters(None, "e:1")
    first, both = ("silent:1",), ("alive:1", "silent:1")
    of_channel = ("alive:1", "c:1", "silent:1"), ("alive:1", "d:1", "silent:1")
    assert agent.filter_servers_seen == [first, both, both, *of_channel]
    agent.pass_time(30)
    assert len(agent.filter_servers_seen) == 5
    agent.serve_filters(None, "alive:1")
    agent.pass_time(10)
    assert agent.filter_servers_seen[-1:] == [("alive:1",)]


# Filters by expression.

DAY = 24 * 3600.0


def read(agent: Agent, *subscriptions: pb.SubscriptionData, group: str = GROUP) -> None:
    """Has the only client of a group send a heartbeat. Without subscriptions, it reads another topic by its tags."""
    agent.beat(None, consumers=[consumer(group, *subscriptions)])


def filter_of(agent: Agent, group: str = GROUP) -> pb.ConsumerFilterData:
    return next(data for data in agent.managers.filters.by_group(group) if data.topic == "T")


def is_dead(agent: Agent, group: str = GROUP) -> bool:
    return filter_of(agent, group).HasField("dead_time_millis")


@pytest.mark.parametrize("now", [[], [sql("other")], [tags("T", 8)]], ids=["no topic", "other topic", "by tags"])
def test_a_filter_is_born_with_its_subscription_and_dies_once_without(
    agent: Agent, now: list[pb.SubscriptionData]
) -> None:
    of_tags = pb.SubscriptionData(topic="U", expression="*")  # by default
    read(agent, sql("T", 7, "a > 5"), of_tags, sql("V", expression=""))
    (data,) = agent.managers.filters.by_group(GROUP)
    assert (data.topic, data.expression, data.client_version) == ("T", "a > 5", 7)
    assert data.born_time_millis == agent.clock.wall_millis()
    read(agent, sql("T"), group="other")
    agent.clock.advance(5)
    assert not is_dead(agent)
    read(agent, *now)
    died = agent.clock.wall_millis()
    agent.clock.advance(5)
    read(agent)
    assert filter_of(agent).dead_time_millis == died
    assert not is_dead(agent, "other")


@pytest.mark.parametrize(
    ("version", "expression", "lives", "is_young"),
    [(6, "a > 5", False, False), (7, "a > 5", True, False), (8, "a > 5", True, False), (8, "a > 7", True, True)],
)
def test_no_older_filter_lives_again_and_the_same_keeps_its_age(
    agent: Agent, version: int, expression: str, lives: bool, is_young: bool
) -> None:
    read(agent, sql("T", 7, "a > 5"))
    born = agent.clock.wall_millis()
    read(agent)
    agent.clock.advance(5)
    read(agent, sql("T", version, expression))
    found = filter_of(agent)
    assert (is_dead(agent), found.expression, found.client_version) == (not lives, expression, max(version, 7))
    assert found.born_time_millis == (agent.clock.wall_millis() if is_young else born)
    agent.managers.filters.register(GROUP, {"T": sql("T", 6, "a > 6")})
    assert (is_dead(agent), filter_of(agent).expression) == (not lives, expression)
    agent.clock.advance(2 * DAY)
    agent.managers.filters.clean()
    assert bool(agent.managers.filters.by_group(GROUP)) is lives


def test_dead_filters_are_kept_for_a_day_of_the_monotonic_clock(agent: Agent) -> None:
    read(agent, sql("T"))
    read(agent, sql("T"), group="living")
    agent.leave(None, consumer_group=GROUP)
    agent.clock.wall_ahead += 10 * DAY
    agent.clock.advance(DAY - 1)
    agent.managers.filters.clean()
    assert is_dead(agent)
    agent.clock.advance(1)
    agent.managers.filters.clean()
    assert agent.managers.filters.by_group(GROUP) == []
    assert not is_dead(agent, "living")


def test_beyond_the_limit_the_longest_dead_filter_goes_first(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_DEAD_FILTERS", 2)
    for group in ("one", "two", "three"):
        read(agent, sql("T"), group=group)
    for group in ("two", "one", "three"):
        read(agent, group=group)
    assert agent.managers.filters.by_group("two") == []
    assert is_dead(agent, "one")


# The rules on the fields of requests.


def heartbeat(path: str = "client_id", value: object = "one") -> pb.HeartbeatRequest:
    """A good heartbeat but for a field such as ``consumer_groups[0].group_name``."""
    producers, consumers = [pb.ProducerData(group_name="producers")], [consumer("consumers", tags("A"), sql("B"))]
    request = pb.HeartbeatRequest(client_id="one", producer_groups=producers, consumer_groups=consumers)
    message: Any = request
    *parents, name = path.replace("[", ".").replace("]", "").split(".")
    for part in parents:
        message = message[int(part)] if part.isdigit() else getattr(message, part)
    setattr(message, name, value)
    return request


CONSUMER = "consumer_groups[0]"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("client_id", "", "is empty"),
        ("client_id", "x" * 256, "has 256 bytes, at most 255"),
        ("client_id", "a\nb", "cannot be printed"),
        ("language", "x" * 65, "has 65 bytes, at most 64"),
        ("producer_groups[0].group_name", "", "is empty"),
        (f"{CONSUMER}.group_name", "x" * 256, "has 256 bytes, at most 255"),
        (f"{CONSUMER}.consume_type", 0, "is not set"),
        (f"{CONSUMER}.message_model", 0, "is not set"),
        (f"{CONSUMER}.consume_from_where", 0, "is not set"),
        (f"{CONSUMER}.subscriptions[1].topic", "a\tb", "has characters that are not printable"),
        (f"{CONSUMER}.subscriptions[0].expression", "x" * 4097, "has 4097 bytes, at most 4096"),
        (f"{CONSUMER}.subscriptions[0].expression_type", 7, "is 7, which this version does not know"),
    ],
)
def test_a_field_that_breaks_its_rule_is_named_with_the_problem(field: str, value: object, problem: str) -> None:
    with refuses(Reason.INVALID_FIELD) as refused:
        client_service.check_heartbeat(heartbeat(field, value))
    assert refused.value.violations[0].field == field
    assert problem in refused.value.violations[0].description


def test_fields_groups_and_subscriptions_are_taken_up_to_their_limits() -> None:
    message = heartbeat("client_id", "x" * 255)
    message.language = message.version = "x" * 64
    of_consumer = message.consumer_groups[0]
    of_consumer.group_name = "x" * 255
    for data in of_consumer.subscriptions:
        data.topic, data.expression = "%RETRY%" + "x" * 248, "x" * 4096
        data.expression_type = pb.EXPRESSION_TYPE_UNSPECIFIED
    for number in range(limits.MAX_GROUPS_PER_HEARTBEAT - 1):
        message.producer_groups.add(group_name=f"p{number}")
    for number in range(limits.MAX_SUBSCRIPTIONS - 2):
        of_consumer.subscriptions.add(topic=f"t{number}")
    client_service.check_heartbeat(message)
    of_consumer.subscriptions.add(topic="one-more")
    with refuses(Reason.LIMIT_EXCEEDED, match="subscriptions of one consumer group: 301 is over the limit of 300"):
        client_service.check_heartbeat(message)
    message.producer_groups.add(group_name="one-more")
    with refuses(Reason.LIMIT_EXCEEDED, match="producer groups of one heartbeat: 101 is over the limit of 100"):
        client_service.check_heartbeat(message)
