"""The reasons for which calls are refused, and the texts that they share.

``namesrv.error_codes`` has the gRPC code, RocketMQ's code and the retry hint of each reason. Code that raises
``Refused`` has changed nothing. Docstrings name the reason: "Raises TOPIC_NOT_FOUND" stands for ``Refused`` with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import StrEnum

from namesrv_common.errors import (
    FieldProblems,
    Refused,
    internal_defect,
    invalid_field,
    limit_exceeded,
    malformed_request,
    not_authenticated,
    not_durable,
    not_permitted,
)
from namesrv_common.printable import counted

__all__ = [
    "FieldProblems",
    "Reason",
    "Refused",
    "broker_not_registered",
    "channel_gone",
    "config_key_denied",
    "conflict",
    "crc32_not_match",
    "epoch_changed",
    "internal_defect",
    "invalid_field",
    "kv_not_found",
    "limit_exceeded",
    "malformed_request",
    "need_full_registration",
    "no_data_dir",
    "not_authenticated",
    "not_durable",
    "not_permitted",
    "overloaded",
    "product_env_unavailable",
    "registry_warming",
    "revision_compacted",
    "revision_not_reached",
    "shutting_down",
    "slow_reader",
    "snapshot_gone",
    "stale_state_version",
    "topic_not_found",
    "topics_in_use",
]


class Reason(StrEnum):
    """The reasons of the contract: ``namesrv_api.v1.ErrorReason`` explains each."""

    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    INVALID_FIELD = "INVALID_FIELD"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"
    BROKER_NOT_REGISTERED = "BROKER_NOT_REGISTERED"
    CHANNEL_GONE = "CHANNEL_GONE"
    NEED_FULL_REGISTRATION = "NEED_FULL_REGISTRATION"
    REGISTRY_WARMING = "REGISTRY_WARMING"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    OVERLOADED = "OVERLOADED"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    INTERNAL_DEFECT = "INTERNAL_DEFECT"
    REVISION_COMPACTED = "REVISION_COMPACTED"
    REVISION_NOT_REACHED = "REVISION_NOT_REACHED"
    EPOCH_CHANGED = "EPOCH_CHANGED"
    SNAPSHOT_GONE = "SNAPSHOT_GONE"
    SLOW_READER = "SLOW_READER"
    CRC32_NOT_MATCH = "CRC32_NOT_MATCH"
    NO_DATA_DIR = "NO_DATA_DIR"
    NOT_DURABLE = "NOT_DURABLE"
    KV_NOT_FOUND = "KV_NOT_FOUND"
    CONFLICT = "CONFLICT"
    CONFIG_KEY_DENIED = "CONFIG_KEY_DENIED"
    STALE_STATE_VERSION = "STALE_STATE_VERSION"
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
    NOT_PERMITTED = "NOT_PERMITTED"
    INTENT_NOT_FOUND = "INTENT_NOT_FOUND"
    PRODUCT_ENV_UNAVAILABLE = "PRODUCT_ENV_UNAVAILABLE"
    WATCH_EXPIRED = "WATCH_EXPIRED"
    TOPICS_IN_USE = "TOPICS_IN_USE"


def topic_not_found(topic: str, cluster_name: str | None = None) -> Refused:
    """No broker here has the topic. Takes the cluster, if the call asks about its brokers only."""
    where = "" if cluster_name is None else f" in cluster {cluster_name!r}"
    text = f"no topic route info in this name server for the topic {topic!r}{where}"
    return Refused(Reason.TOPIC_NOT_FOUND, text, topic=topic, cluster_name=cluster_name)


def broker_not_registered(cluster_name: str | None, broker_name: str, broker_addr: str | None = None) -> Refused:
    """The broker is not registered here. Without an address its group is meant, without a cluster any of that name."""
    which = f"broker group {broker_name}" if broker_addr is None else f"broker {broker_name} ({broker_addr})"
    where = "" if cluster_name is None else f" of cluster {cluster_name}"
    return Refused(
        Reason.BROKER_NOT_REGISTERED,
        f"{which}{where} is not registered",
        broker_name=broker_name,
        broker_addr=broker_addr,
        cluster_name=cluster_name,
    )


TOPICS_NAMED = 10
NAMED_BYTES = 2_500
"""Topics that an error names, and bytes of their names: it travels in metadata, whose size HTTP/2 bounds."""


def topics_in_use(topics: Sequence[str], count: int) -> Refused:
    """The change would take topics of applications from their producers, and its caller has not said that it may.

    Takes the first of them, and how many there are.
    """
    sizes = itertools.accumulate(len(topic.encode()) for topic in topics[:TOPICS_NAMED])
    named = [topic for topic, size in zip(topics, sizes, strict=False) if size <= NAMED_BYTES]
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    text = (
        f"{counted(count, 'application topic')} would lose queues that producers need: {', '.join(named)}{more}; "
        "set force to continue"
    )
    return Refused(Reason.TOPICS_IN_USE, text, topics=", ".join(named), topic_count=count)


def channel_gone(channel_id: str) -> Refused:
    """The channel is unknown here, or its stream has ended."""
    shown = channel_id[:64]
    text = f"channel {shown!r} is not open here; open one, then register again"
    return Refused(Reason.CHANNEL_GONE, text, channel_id=shown)


def need_full_registration(text: str) -> Refused:
    """An increment builds on a version that this name server does not hold."""
    return Refused(Reason.NEED_FULL_REGISTRATION, text)


def stale_state_version(stated: int, held: int, holder_addr: str) -> Refused:
    """Another address holds the broker id with a higher state version: the caller is a deposed master."""
    text = f"the broker id is held by {holder_addr} with state_version {held}, the registration has {stated}"
    return Refused(Reason.STALE_STATE_VERSION, text, stated=stated, held=held, holder_addr=holder_addr)


def registry_warming(what: str) -> Refused:
    """The name server has started and has not heard all its brokers yet, so absence is not certain."""
    text = f"this name server has started a short time ago and does not know {what} yet"
    return Refused(Reason.REGISTRY_WARMING, text)


def snapshot_gone(pin_id: str) -> Refused:
    """The pin is unknown, or its lease has ended."""
    shown = pin_id[:64]
    return Refused(Reason.SNAPSHOT_GONE, f"no snapshot is pinned as {shown!r} (any more); pin again", pin_id=shown)


def epoch_changed(stated: str, current: str) -> Refused:
    """A reader resumes from another epoch of this name server."""
    text = f"the epoch is {current}, not {stated[:64]!r}: the name server has restarted; start from a snapshot"
    return Refused(Reason.EPOCH_CHANGED, text, epoch=current)


def revision_compacted(stated: int, compacted: int, last: int) -> Refused:
    """A reader resumes from a revision that the change log does not reach back to."""
    text = f"changes can be read after revisions {compacted} to {last}, not after {stated}; start from a snapshot"
    return Refused(Reason.REVISION_COMPACTED, text, revision=stated, compacted_revision=compacted, last_revision=last)


def revision_not_reached(stated: int, last: int) -> Refused:
    """A reader resumes from a revision of this epoch that is still to come here."""
    text = f"revision {stated} is not reached yet, the last is {last}; try again, or ask the name server that sent it"
    return Refused(Reason.REVISION_NOT_REACHED, text, revision=stated, last_revision=last)


def kv_not_found(namespace: str, key: str | None = None) -> Refused:
    """The KV configuration has no such namespace or key."""
    text = f"no config item: namespace {namespace!r}" + ("" if key is None else f", key {key!r}")
    return Refused(Reason.KV_NOT_FOUND, text, namespace=namespace, key=key)


def conflict(namespace: str, key: str, problem: str) -> Refused:
    """A key of the KV configuration is not as the change expects."""
    text = f"KV configuration: {namespace!r} {key!r} {problem}; read it again"
    return Refused(Reason.CONFLICT, text, namespace=namespace, key=key)


def config_key_denied(key: str, flag: str | None = None) -> Refused:
    """The setting does not change over the wire; with a flag, it changes with the next start."""
    rule = f"changes with a start only: set {flag}" if flag else "never changes over the wire"
    return Refused(Reason.CONFIG_KEY_DENIED, f"the setting {key} {rule}", key=key)


def no_data_dir() -> Refused:
    """The change must be durable, and this name server has no data directory."""
    return Refused(Reason.NO_DATA_DIR, "this name server has no data directory; start it with --data-dir")


def crc32_not_match(stated: int, actual: int) -> Refused:
    """A topic table has another CRC-32 than its sender says."""
    text = f"body_crc32 is {stated}, but the topic table as it arrived has {actual}"
    return Refused(Reason.CRC32_NOT_MATCH, text, stated=stated, actual=actual)


PRODUCT_ENV_NAME = "center"
"""The product environment in errors: the default of RocketMQ's productEnvName."""


def product_env_unavailable(problems: Sequence[str]) -> Refused:
    """No name server of the product environment could answer. Takes what each of them did instead."""
    text = f"unknown here, and the product environment {PRODUCT_ENV_NAME!r} cannot tell: {'; '.join(problems)}"
    return Refused(Reason.PRODUCT_ENV_UNAVAILABLE, text, product_env=PRODUCT_ENV_NAME)


def shutting_down(retry_after_seconds: float | None = None) -> Refused:
    """The name server takes no more changes. Takes when to come back, where many callers get it at once."""
    text = "this name server is shutting down"
    return Refused(Reason.SHUTTING_DOWN, text, retry_after_seconds=retry_after_seconds)


def overloaded(text: str) -> Refused:
    """Too much of one kind is waiting or open already."""
    return Refused(Reason.OVERLOADED, text)


def slow_reader(stalled_seconds: float) -> Refused:
    """The reader of a stream fell too far behind and was cut."""
    return Refused(Reason.SLOW_READER, f"the reader took nothing for {stalled_seconds:g} s and was cut")


def watch_expired(seconds: float) -> Refused:
    """The watch has been open for so long that its reader shall choose a name server anew."""
    text = f"the watch has been open for {seconds:.0f} s; open it again, at any name server"
    return Refused(Reason.WATCH_EXPIRED, text)
