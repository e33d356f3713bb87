"""Clients of an agent without a network, on a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence

from broker_agent_api.v1 import client_service_pb2 as pb

from broker_agent.clients.managers import ClientManagers, StreamChannel
from namesrv_common.server.shares import MACHINE, Sharer
from tests.support.virtual_clock import VirtualClock, agent_timing

ADDRESS = "127.0.0.1:50000"
GROUP = "group"
SILENCE = 120.0


def tags(
    topic: str, version: int = 1, expression: str = "*", kind: pb.ExpressionType = pb.EXPRESSION_TYPE_TAG
) -> pb.SubscriptionData:
    return pb.SubscriptionData(topic=topic, expression=expression, expression_type=kind, sub_version=version)


def sql(topic: str, version: int = 1, expression: str = "a > 5") -> pb.SubscriptionData:
    return tags(topic, version, expression, pb.EXPRESSION_TYPE_SQL92)


def consumer(
    group: str = GROUP,
    *subscriptions: pb.SubscriptionData,
    message_model: pb.MessageModel = pb.MESSAGE_MODEL_CLUSTERING,
) -> pb.ConsumerData:
    return pb.ConsumerData(
        group_name=group,
        consume_type=pb.CONSUME_TYPE_PASSIVELY,
        message_model=message_model,
        consume_from_where=pb.CONSUME_FROM_WHERE_LAST_OFFSET,
        subscriptions=subscriptions or (tags("TopicTest"),),
    )


class Agent:
    """The managers without a listener, and clients of them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.managers = ClientManagers(agent_timing(self.clock))
        self.filter_servers_seen: list[tuple[str, ...]] = []
        """The addresses after each change, and after each call that renewed one."""
        self.managers.filter_servers.on_change = self.filter_servers_seen.append

    def open(self, sharer: Sharer = MACHINE) -> StreamChannel:
        return self.managers.channels.open(ADDRESS, sharer)

    def beat(
        self,
        channel: StreamChannel | None,
        client_id: str = "client",
        producers: Sequence[str] = (),
        consumers: Sequence[pb.ConsumerData] = (),
        sharer: Sharer | None = None,
    ) -> list[str]:
        request = pb.HeartbeatRequest(
            client_id=client_id,
            channel_id=channel.channel_id if channel else None,
            producer_groups=[pb.ProducerData(group_name=group) for group in producers],
            consumer_groups=consumers,
        )
        return self.managers.heart_beat(request, ADDRESS, sharer or (channel.sharer if channel else MACHINE))

    def leave(self, channel: StreamChannel | None, **groups: str) -> bool:
        channel_id = channel.channel_id if channel else None
        request = pb.UnregisterClientRequest(client_id="client", channel_id=channel_id, **groups)
        return self.managers.unregister_client(request)

    def serve_filters(self, channel: StreamChannel | None, addr: str) -> None:
        request = pb.RegisterFilterServerRequest(
            filter_server_addr=addr, channel_id=channel.channel_id if channel else None
        )
        self.managers.register_filter_server(request, ADDRESS)

    def ids(self) -> list[str]:
        return self.managers.consumers.client_ids(GROUP)

    def groups(self) -> tuple[set[str], set[str]]:
        """Names of the producer groups, and of the consumer groups."""
        return set(self.managers.producers.groups()), set(self.managers.consumers.groups())

    def pass_time(self, seconds: float) -> None:
        """Lets time pass with a scan every 10 s, as in the event loop."""
        end = self.clock.seconds + seconds
        while self.clock.seconds + 10 <= end:
            self.clock.advance(10)
            self.managers.scan()
        self.clock.advance(end - self.clock.seconds)


def told(channel: StreamChannel) -> list[str]:
    """Takes what a channel would be sent: names of groups, and names of reasons in capitals."""
    return [
        message.consumer_ids_changed.consumer_group
        if message.HasField("consumer_ids_changed")
        else message.closing.Reason.Name(message.closing.reason)
        for message in channel.take()
    ]
