"""The tree of errors that a call can end with.

    CallRefused
    +-- MalformedRequest      the request's bytes are not a message of the call
    +-- InvalidField          a request breaks a rule
    +-- LimitExceeded         something is larger or more than a limit
    +-- TopicNotFound
    +-- BrokerNotRegistered
    +-- ChannelGone
    +-- NeedFullRegistration
    +-- StaleStateVersion     a deposed master
    +-- RegistryWarming       not all brokers have been heard yet
    +-- IntentNotFound
    +-- SnapshotGone          a pin's lease has ended
    +-- EpochChanged          a reader resumes after a restart
    +-- RevisionCompacted     a reader resumes too far back
    +-- Crc32NotMatch         a topic table is not what its sender took the checksum of
    +-- KvNotFound
    +-- ConfigKeyDenied       a setting that never changes over the wire
    +-- NotAuthenticated      nobody knows who calls
    +-- NotPermitted          the caller's permit does not cover the call
    +-- NoDataDir             the call needs a data directory
    +-- NotDurable            the disk did not take the change
    +-- ProductEnvUnavailable nobody in the product environment could tell about a topic
    +-- ReadOnlyReplica       registrations and changes are the leader's business
    +-- ShuttingDown
    +-- Overloaded
    +-- SlowReader            the reader of a stream was cut
    +-- NotImplementedYet     a call or a field that this version does not have
    +-- InternalDefect        a defect of ours; the log has the details

``namesrv.error_codes`` maps each to its gRPC code and reason. Whatever raises one has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    "BrokerNotRegistered",
    "CallRefused",
    "ChannelGone",
    "ConfigKeyDenied",
    "Crc32NotMatch",
    "EpochChanged",
    "IntentNotFound",
    "InternalDefect",
    "InvalidField",
    "KvNotFound",
    "LimitExceeded",
    "MalformedRequest",
    "NeedFullRegistration",
    "NoDataDir",
    "NotAuthenticated",
    "NotDurable",
    "NotImplementedYet",
    "NotPermitted",
    "Overloaded",
    "ProductEnvUnavailable",
    "ReadOnlyReplica",
    "RegistryWarming",
    "RevisionCompacted",
    "ShuttingDown",
    "SlowReader",
    "SnapshotGone",
    "StaleStateVersion",
    "TopicNotFound",
]


class TopicNotFound(CallRefused):
    """No broker here has the topic."""

    def __init__(self, topic: str, cluster_name: str | None = None) -> None:
        """Names the topic, and the cluster if only its brokers were asked about."""
        metadata, where = {"topic": topic}, ""
        if cluster_name is not None:
            metadata["cluster_name"] = cluster_name
            where = f" in cluster {cluster_name!r}"
        super().__init__(f"no topic route info in this name server for the topic {topic!r}{where}", metadata)


class BrokerNotRegistered(CallRefused):
    """The broker, or the whole group, is not registered here, or not any more."""

    def __init__(self, cluster_name: str | None, broker_name: str, broker_addr: str | None = None) -> None:
        """Names the broker; without an address, its group; without a cluster, any group of the name."""
        metadata = {"broker_name": broker_name}
        which, where = f"broker group {broker_name}", ""
        if broker_addr is not None:
            metadata["broker_addr"] = broker_addr
            which = f"broker {broker_name} ({broker_addr})"
        if cluster_name is not None:
            metadata["cluster_name"] = cluster_name
            where = f" of cluster {cluster_name}"
        super().__init__(f"{which}{where} is not registered", metadata)


class ChannelGone(CallRefused):
    """The channel is unknown here, or its stream has ended."""

    def __init__(self, channel_id: str) -> None:
        text = f"channel {channel_id[:64]!r} is not open here; open one, then register again"
        super().__init__(text, {"channel_id": channel_id[:64]})


class NeedFullRegistration(CallRefused):
    """An increment builds on a version that this name server does not hold."""


class StaleStateVersion(CallRefused):
    """Another address holds the broker id with a higher state version: the caller is a deposed master."""

    def __init__(self, stated: int, held: int, holder_addr: str) -> None:
        super().__init__(
            f"the broker id is held by {holder_addr} with state_version {held}, the registration has {stated}",
            {"stated": str(stated), "held": str(held), "holder_addr": holder_addr},
        )


class RegistryWarming(CallRefused):
    """The name server has started and has not heard all its brokers yet, so it cannot say what is absent."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this name server has started a short time ago and does not know {what} yet")


class IntentNotFound(CallRefused):
    """There is no such intent, hold or unconfirmed broker."""


class SnapshotGone(CallRefused):
    """The pin is unknown, or its lease has ended."""

    def __init__(self, pin_id: str) -> None:
        super().__init__(f"no snapshot is pinned as {pin_id[:64]!r} (any more); pin again", {"pin_id": pin_id[:64]})


class EpochChanged(CallRefused):
    """A reader resumes from another epoch of this name server."""

    def __init__(self, stated: str, current: str) -> None:
        super().__init__(
            f"the epoch is {current}, not {stated[:64]!r}: the name server has restarted; start from a snapshot",
            {"epoch": current},
        )


class RevisionCompacted(CallRefused):
    """A reader resumes from a revision that the change log does not reach back to, or that is still to come."""

    def __init__(self, stated: int, compacted: int, last: int) -> None:
        super().__init__(
            f"changes can be read after revisions {compacted} to {last}, not after {stated}; start from a snapshot",
            {"revision": str(stated), "compacted_revision": str(compacted), "last_revision": str(last)},
        )


class KvNotFound(CallRefused):
    """The KV configuration has no such namespace or key."""

    def __init__(self, namespace: str, key: str | None = None) -> None:
        metadata = {"namespace": namespace} if key is None else {"namespace": namespace, "key": key}
        wanted = ", ".join(f"{part} {name!r}" for part, name in metadata.items())
        super().__init__(f"no config item: {wanted}", metadata)


class ConfigKeyDenied(CallRefused):
    """The setting never changes over the wire."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the setting {key} never changes over the wire", {"key": key})


class NoDataDir(CallRefused):
    """What the call changes must be durable, and this name server has no data directory."""

    def __init__(self) -> None:
        super().__init__("this name server has no data directory; start it with --data-dir")


class Crc32NotMatch(CallRefused):
    """A topic table has another CRC-32 than its sender says."""

    def __init__(self, stated: int, actual: int) -> None:
        super().__init__(
            f"body_crc32 is {stated}, but the topic table as it arrived has {actual}",
            {"stated": str(stated), "actual": str(actual)},
        )


class ProductEnvUnavailable(CallRefused):
    """No name server of the product environment could tell whether it has the topics."""

    def __init__(self, product_env: str, problems: Sequence[str]) -> None:
        """Names the environment, and what each of its name servers did instead."""
        text = f"unknown here, and the product environment {product_env!r} cannot tell: {'; '.join(problems)}"
        super().__init__(text, {"product_env": product_env})


class ReadOnlyReplica(CallRefused):
    """This name server is a copy of another one, which registers and administers."""

    def __init__(self, leader: str) -> None:
        """Names the leader, HOST:PORT."""
        super().__init__(f"this name server is a read-only copy of {leader}; call that one", {"leader": leader})


class ShuttingDown(CallRefused):
    """The name server takes no more changes."""

    def __init__(self, retry_after_seconds: float | None = None) -> None:
        """Takes when to come back, where many callers get it at once; None: after the usual time."""
        super().__init__("this name server is shutting down")
        self.retry_after_seconds = retry_after_seconds


class Overloaded(CallRefused):
    """Too much of one kind is waiting or open already."""


class SlowReader(common.SlowReader):
    """The reader of a stream fell too far behind and was cut."""

    def __init__(self, stalled_seconds: float) -> None:
        super().__init__(f"the reader took nothing for {stalled_seconds:g} s and was cut")


class NotImplementedYet(CallRefused):
    """This version does not have the call or the field."""
