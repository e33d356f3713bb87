"""Records of clients and their subscriptions."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from groundwork.shares import MACHINE, Sharer


class ClientChannel(Protocol):
    """What RocketMQ's TCP connection to a client is: the key of the client, and the way to tell it something.

    Two channels are the same only if they are the same connection, or plain clients of one id.
    """

    @property
    def remote_addr(self) -> str: ...

    @property
    def is_active(self) -> bool:
        """Whether the client can be told something."""

    def notify_consumer_ids_changed(self, group: str) -> None:
        """Tells the client that a consumer group changed, if it can be told. Returns at once; never raises."""


class ConsumeType(enum.Enum):
    """How a consumer gets its messages."""

    ACTIVELY = "PULL"
    PASSIVELY = "PUSH"
    POP = "POP"


class MessageModel(enum.Enum):
    """Who of a consumer group gets a message."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(enum.Enum):
    """Where a group that has consumed nothing yet starts."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ExpressionType(enum.Enum):
    """Language of a filter expression."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class ClientChannelInfo:
    """A client in one group."""

    channel: ClientChannel
    """The key of the client."""
    client_id: str
    language: str
    """Programming language, for people."""
    version: str
    """Version of its library, for people."""
    last_update: float
    """When it was last heard in this group: monotonic seconds."""
    remote_addr: str
    """Address that it called from when it was last heard."""
    sharer: Sharer = MACHINE
    """The caller whose shares it takes: that which it joined as."""


@dataclass(frozen=True, slots=True)
class ConsumerAttributes:
    """What a consumer group keeps of its last heartbeat."""

    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic that a consumer group reads."""

    topic: str
    expression: str
    """Filter expression; empty means all messages (subString)."""
    expression_type: ExpressionType
    sub_version: int
    """The highest wins where members of a group differ."""

    @property
    def size(self) -> int:
        """Bytes of topic and expression in UTF-8, which the limits count."""
        return len(self.topic.encode()) + len(self.expression.encode())


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A consumer group in a heartbeat."""

    group: str
    attributes: ConsumerAttributes
    subscriptions: tuple[SubscriptionData, ...]
    """All topics of the group, each once."""


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """A heartbeat that has been checked (RocketMQ: HeartbeatData)."""

    client_id: str
    language: str
    version: str
    producer_groups: tuple[str, ...]
    """Each once."""
    consumers: tuple[ConsumerData, ...]
    """Each group once."""
