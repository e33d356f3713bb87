"""The reasons for which calls are refused, and the texts that they share.

``namesrv.error_codes`` has the gRPC code, RocketMQ's code and the retry hint of each reason. Code that raises
``Refused`` has changed nothing. Docstrings name the reason: "Raises TOPIC_NOT_FOUND" stands for ``Refused`` with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from namesrv_common.errors import (
    FieldProblems,
    Refused,
    internal_defect,
    invalid_field,
    limit_exceeded,
    not_authenticated,
    not_durable,
    not_permitted,
)

__all__ = [
    "FieldProblems",
    "Reason",
    "Refused",
    "broker_not_registered",
    "crc32_not_match",
    "internal_defect",
    "invalid_field",
    "limit_exceeded",
    "not_authenticated",
    "not_durable",
    "not_permitted",
    "overloaded",
    "registry_warming",
    "revision_compacted",
    "shutting_down",
    "suppress_refusals",
    "topic_not_found",
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


@contextmanager
def suppress_refusals(*reasons: str) -> Iterator[None]:
    """A context that passes over ``Refused`` for these reasons."""
    try:
        yield
    except Refused as error:
        if error.reason not in reasons:
            raise


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


def registry_warming(what: str) -> Refused:
    """The name server has started and has not heard all its brokers yet, so absence is not certain."""
    text = f"this name server has started a short time ago and does not know {what} yet"
    return Refused(Reason.REGISTRY_WARMING, text)


def revision_compacted(stated: int, compacted: int, last: int) -> Refused:
    """A reader resumes from a revision that the change log does not reach back to."""
    text = f"changes can be read after revisions {compacted} to {last}, not after {stated}; start from a snapshot"
    return Refused(Reason.REVISION_COMPACTED, text, revision=stated, compacted_revision=compacted, last_revision=last)


def crc32_not_match(stated: int, actual: int) -> Refused:
    """A topic table has another CRC-32 than its sender says."""
    text = f"body_crc32 is {stated}, but the topic table as it arrived has {actual}"
    return Refused(Reason.CRC32_NOT_MATCH, text, stated=stated, actual=actual)


def shutting_down(retry_after_seconds: float | None = None) -> Refused:
    """The name server takes no more changes. Takes when to come back, where many callers get it at once."""
    text = "this name server is shutting down"
    return Refused(Reason.SHUTTING_DOWN, text, retry_after_seconds=retry_after_seconds)


def overloaded(text: str) -> Refused:
    """Too much of one kind is waiting or open already."""
    return Refused(Reason.OVERLOADED, text)
