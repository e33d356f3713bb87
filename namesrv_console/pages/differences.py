"""Differences between name servers, and since when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from namesrv_api.v1 import admin_service_pb2

from namesrv_console.fleet.observation import BrokerKey, Observation, Tables

SETTLED_MILLIS = 5_000
"""A difference that is younger is not shown: a broker registers with one name server after the other, and they are not
read at the same moment."""


class Difference(NamedTuple):
    """Something that is not the same everywhere."""

    kind: str
    """``broker`` or ``intent``."""
    subject: tuple[str, ...]
    """Which one, in words that are shown one after the other."""
    said: tuple[str | None, ...]
    """What each name server says, in the order they were named; None of one that is not compared."""


def differences(seen: Sequence[Observation]) -> list[Difference]:
    """What differs between the name servers that answer; nothing if fewer than two do."""
    tables = [view.tables if view.reachable else None for view in seen]
    if sum(table is not None for table in tables) < 2:
        return []
    brokers = sorted({key for table in tables if table for key in table.lives})
    intents = sorted({subject for table in tables if table for subject in map(_subject, table.intents)})
    found = [
        Difference("broker", _broker_words(key), tuple(_broker_said(table, key) for table in tables)) for key in brokers
    ]
    found += [
        Difference("intent", subject, tuple(_intent_said(table, subject) for table in tables)) for subject in intents
    ]
    return [difference for difference in found if len(set(difference.said) - {None}) > 1]


class SettledDifferences:
    """The differences that have been there for some time. Knows when it saw each for the first time."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, tuple[str, ...]], int] = {}

    def of(self, seen: Sequence[Observation], now_millis: int) -> list[tuple[Difference, int]]:
        """What differs, each with when that was seen first, milliseconds since the Unix epoch."""
        found = differences(seen)
        self._since = {
            (difference.kind, difference.subject): self._since.get((difference.kind, difference.subject), now_millis)
            for difference in found
        }
        with_time = [(difference, self._since[difference.kind, difference.subject]) for difference in found]
        return [(difference, since) for difference, since in with_time if now_millis - since >= SETTLED_MILLIS]


INTENT_WORDS: Mapping[int, str] = {
    admin_service_pb2.Intent.KIND_WIPE_WRITE_PERM: "drain",
    admin_service_pb2.Intent.KIND_ADD_WRITE_PERM: "write permission given",
    admin_service_pb2.Intent.KIND_TOPIC_HOLD: "topic hold",
}
"""Kinds of intent in words for people."""


def _broker_words(key: BrokerKey) -> tuple[str, ...]:
    return (key.broker, f"id {key.id}", key.addr, f"of {key.cluster}")


def _broker_said(table: Tables | None, key: BrokerKey) -> str | None:
    if table is None:
        return None
    live = table.lives.get(key)
    if live is None:
        return "not there"
    reported = table.reported.get(key)
    content = f"version {reported.version}, content {reported.digest.hex()[:8]}" if reported else "there"
    return f"{content}, unconfirmed" if live.unconfirmed else content


def _subject(intent: admin_service_pb2.Intent) -> tuple[str, ...]:
    what = intent.topic or intent.broker_name
    where = f"of {intent.cluster_name}" if intent.HasField("cluster_name") else "of every cluster"
    return (INTENT_WORDS.get(intent.kind, "intent"), what, where)


def _intent_said(table: Tables | None, subject: tuple[str, ...]) -> str | None:
    if table is None:
        return None
    return "decided" if any(_subject(intent) == subject for intent in table.intents) else "not decided"
