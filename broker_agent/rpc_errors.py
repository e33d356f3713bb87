"""The tree of errors that a call to the agent can end with; ``error_codes`` has the code and the reason of each."""

from __future__ import annotations

from groundwork import errors as common
from groundwork.errors import (
    CallRefused,
    InternalDefect,
    InvalidField,
    LimitExceeded,
    MalformedRequest,
    NotAuthenticated,
    NotDurable,
    NotPermitted,
)

__all__ = [
    "CallRefused",
    "ChannelGone",
    "ConsumerGroupNotFound",
    "InternalDefect",
    "InvalidField",
    "LimitExceeded",
    "MalformedRequest",
    "NotAuthenticated",
    "NotDurable",
    "NotMaster",
    "NotPermitted",
    "ProducerGroupNotFound",
    "ShuttingDown",
    "SlowReader",
    "SystemTopic",
    "TopicNotFound",
    "TopicTableChanged",
    "TopicsFileChanged",
    "TopicsFollowed",
]


class TopicNotFound(CallRefused):
    """The broker has no such topic."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"the broker has no topic {topic!r}", {"topic": topic})


class SystemTopic(CallRefused):
    """The broker needs this topic itself."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is a system topic: it is not changed or deleted by call", {"topic": topic})


class TopicsFollowed(CallRefused):
    """The topics belong to the broker, which alone changes them."""

    def __init__(self) -> None:
        super().__init__("topics.json belongs to the broker and is only followed here: change topics at the broker")


class NotMaster(CallRefused):
    """A slave's topics are its master's."""

    def __init__(self) -> None:
        super().__init__("this broker is a slave and copies its topics: change topics at the master")


class TopicsFileChanged(CallRefused):
    """Another process writes the file that the agent owns."""

    def __init__(self, file: str) -> None:
        super().__init__(
            f"{file} was written by another process although the agent owns it: restart the agent to read it, or let "
            "it follow the file"
        )


class TopicTableChanged(CallRefused):
    """The table of the page before is gone."""

    def __init__(self) -> None:
        super().__init__("the topic table has changed since the page before: start again with the first page")


class ChannelGone(CallRefused):
    """The client channel is unknown here, or its stream has ended."""

    def __init__(self) -> None:
        super().__init__(
            "channel_id names no open client channel of this agent: open another, send a heartbeat over it"
        )


class ConsumerGroupNotFound(CallRefused):
    """Nobody is in the consumer group."""

    def __init__(self, group: str) -> None:
        super().__init__(f"no client is in the consumer group {group!r}", {"consumer_group": group})


class ProducerGroupNotFound(CallRefused):
    """Nobody is in the producer group."""

    def __init__(self, group: str) -> None:
        super().__init__(f"no client is in the producer group {group!r}", {"producer_group": group})


class SlowReader(common.SlowReader):
    """The holder of a channel does not read."""

    def __init__(self) -> None:
        super().__init__("the holder of this channel does not read it: open another, send a heartbeat over it")


class ShuttingDown(CallRefused):
    """The agent is at its end."""

    def __init__(self) -> None:
        super().__init__("the agent is shutting down")
