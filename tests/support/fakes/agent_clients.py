"""Clients without a network, and a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker_agent.clients.channels import StreamChannel
from broker_agent.clients.clients import ClientManagers
from broker_agent.clients.consumer_filter_manager import ConsumerFilterManager
from broker_agent.clients.groups import DefaultConsumerIdsChangeListener
from broker_agent.clients.records import (
    ClientChannel,
    ClientChannelInfo,
    ConsumeFromWhere,
    ConsumerAttributes,
    ConsumerData,
    ConsumeType,
    ExpressionType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from broker_agent.timing import Timing
from tests.support.timing import agent_timing
from tests.support.virtual_clock import VirtualClock

SILENCE = 120.0


@dataclass(eq=False)
class FakeChannel:
    """A connection; equal to itself only."""

    is_active: bool = True
    remote_addr: str = "127.0.0.1:50000"
    told: list[str] = field(default_factory=list)

    def notify_consumer_ids_changed(self, group: str) -> None:
        self.told.append(group)


class Events(DefaultConsumerIdsChangeListener):
    """Remembers what managers told."""

    def __init__(self) -> None:
        super().__init__(ConsumerFilterManager(Timing()), notify_consumer_ids_changed_enable=True)
        self.all: list[tuple[object, ...]] = []

    def on_register(self, group: str, subscriptions: Sequence[SubscriptionData]) -> None:
        self.all.append(("REGISTER", group))

    def on_change(self, group: str, channels: Sequence[ClientChannel]) -> None:
        self.all.append(("CHANGE", group, *channels))

    def on_unregister(self, group: str) -> None:
        self.all.append(("UNREGISTER", group))

    def take(self) -> list[tuple[object, ...]]:
        taken, self.all = self.all, []
        return taken


CLUSTERING = ConsumerAttributes(ConsumeType.PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.LAST_OFFSET)
BROADCASTING = ConsumerAttributes(ConsumeType.PASSIVELY, MessageModel.BROADCASTING, ConsumeFromWhere.LAST_OFFSET)


def client(channel: ClientChannel, now: float, client_id: str = "client-1") -> ClientChannelInfo:
    return ClientChannelInfo(channel, client_id, "PYTHON", "1", now, channel.remote_addr)


def tags(topic: str, version: int = 1, expression: str = "*") -> SubscriptionData:
    return SubscriptionData(topic, expression, ExpressionType.TAG, version)


def sql(topic: str, version: int = 1, expression: str = "a > 5") -> SubscriptionData:
    return SubscriptionData(topic, expression, ExpressionType.SQL92, version)


def consumer(group: str, *subscriptions: SubscriptionData, attributes: ConsumerAttributes = CLUSTERING) -> ConsumerData:
    return ConsumerData(group, attributes, subscriptions or (tags("TopicTest"),))


def heartbeat(
    client_id: str = "client-1", producer_groups: Sequence[str] = (), consumers: Sequence[ConsumerData] = ()
) -> HeartbeatData:
    return HeartbeatData(client_id, "PYTHON", "1", tuple(producer_groups), tuple(consumers))


class Agent:
    """The managers without a listener, and clients of them."""

    def __init__(
        self,
        *,
        notify_consumer_ids_changed_enable: bool = True,
        max_channels: int = 10_000,
    ) -> None:
        self.clock = VirtualClock()
        self.managers = ClientManagers(
            agent_timing(self.clock),
            notify_consumer_ids_changed_enable=notify_consumer_ids_changed_enable,
            max_channels=max_channels,
        )
        self.tables = self.managers.tables

    def open(self, holder: str = "holder") -> StreamChannel:
        return self.tables.channels.open(holder, "127.0.0.1:50000", lambda: None)

    def beat(
        self,
        channel: StreamChannel | None,
        client_id: str = "client-1",
        producer_groups: Sequence[str] = (),
        consumers: Sequence[ConsumerData] = (),
    ) -> list[str]:
        return self.managers.processor.heart_beat(
            channel.channel_id if channel else None,
            "127.0.0.1:50000",
            self.clock.seconds,
            heartbeat(client_id, producer_groups, consumers),
        )

    def pass_time(self, seconds: float) -> None:
        """Lets time pass with a scan every 10 s, as the thread does it."""
        end = self.clock.seconds + seconds
        while self.clock.seconds + 10 <= end:
            self.clock.advance(10)
            self.managers.housekeeping.scan()
        self.clock.advance(end - self.clock.seconds)


def told(channel: StreamChannel) -> list[str]:
    """Takes what a channel would be sent: names of groups, and names of reasons in capitals."""
    return [
        message.consumer_ids_changed.consumer_group
        if message.HasField("consumer_ids_changed")
        else message.closing.Reason.Name(message.closing.reason)
        for message in channel.take()
    ]
