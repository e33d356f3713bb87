"""Errors of clients' calls, beside those that all calls share."""

from __future__ import annotations

import grpc

from broker_agent.rpc_errors import CallRefused


class ChannelGone(CallRefused):
    """The client channel is unknown here, or its stream has ended."""

    code, reason = grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_GONE"

    def __init__(self) -> None:
        super().__init__(
            "channel_id names no open client channel of this agent: open another, send a heartbeat over it"
        )


class ConsumerGroupNotFound(CallRefused):
    """Nobody is in the consumer group."""

    code, reason = grpc.StatusCode.NOT_FOUND, "CONSUMER_GROUP_NOT_FOUND"

    def __init__(self, group: str) -> None:
        super().__init__(f"no client is in the consumer group {group!r}", {"consumer_group": group})


class ProducerGroupNotFound(CallRefused):
    """Nobody is in the producer group."""

    code, reason = grpc.StatusCode.NOT_FOUND, "PRODUCER_GROUP_NOT_FOUND"

    def __init__(self, group: str) -> None:
        super().__init__(f"no client is in the producer group {group!r}", {"producer_group": group})


class SlowReader(CallRefused):
    """The holder of a channel does not read."""

    code, reason = grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER"

    def __init__(self) -> None:
        super().__init__("the holder of this channel does not read it: open another, send a heartbeat over it")


class ShuttingDown(CallRefused):
    """The agent is at its end."""

    code, reason, retry_after_seconds = grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN", 1.0

    def __init__(self) -> None:
        super().__init__("the agent is shutting down")
