"""The workloads: what the table holds, who calls what, and how."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from bench.peers.calls import Call, Language, Topics
from bench.peers.generator import Group
from bench.workload import SEED, Profile

_FILLED = 1
"""Counter of the data versions that the table is filled with."""
_CALLS = 50_000
"""Length of a list of lookups; it starts again when it is through."""
_CLUSTERS, _BROKERS = 4, 8
_READERS, _READERS_RATE = 32, 500.0


class Table(NamedTuple):
    """Which broker has which topics."""

    topics: int
    owners: Callable[[], list[Topics]]
    """Topics of each broker."""

    def fill(self, language: Language) -> Group:
        """Registers everybody."""
        calls = [language.register(broker, topics, _FILLED) for broker, topics in enumerate(self.owners())]
        return Group("fill", calls, connections=1, in_flight=4)

    def registrations(self, language: Language, *, changed: bool = False, most: int | None = None) -> list[Call]:
        """Each broker registers twice with new versions, the first time with other queue counts if ``changed``."""
        return [
            language.register(broker, topics[:most], _FILLED + turn, changed=changed and turn == 1)
            for turn in (1, 2)
            for broker, topics in enumerate(self.owners())
        ]

    def lookups(self, language: Language) -> list[Call]:
        """Lookups of random topics."""
        rng = random.Random(SEED)
        known = [language.lookup(topic) for topic in range(self.topics)]
        return rng.choices(known, k=_CALLS)


Groups = Callable[[Table, Language], list[Group]]


class Workload(NamedTuple):
    """What one run does."""

    name: str
    table: Table
    groups: Groups


def all_workloads(scale: float = 1.0) -> dict[str, Workload]:
    """Every workload by name; a scale below 1 makes tables smaller."""

    def spread(topics: int, brokers: int, width: int) -> Table:
        """Topics over random brokers."""
        small = Profile(int(topics * scale), max(width, int(brokers * scale)), width)
        return Table(small.topics, lambda: [*small.topics_of_brokers()])

    def owners() -> list[Topics]:
        """The shape of RocketMQ's own benchmarks: each broker of a cluster has all topics of the cluster."""
        return [range(start := broker % _CLUSTERS * each, start + each) for broker in range(_CLUSTERS * _BROKERS)]

    each = int(10_000 * scale)
    small, wide, clustered = spread(20_000, 1_000, 1), spread(20_000, 1_000, 16), Table(each * _CLUSTERS, owners)
    wider = spread(100_000, 1_000, 16)
    found = (
        Workload("lookups", small, _reading(64)),
        Workload("connections-1", small, _reading(1)),
        Workload("connections-1024", small, _reading(1_024)),
        Workload("lookups-20k-width-16", wide, _reading(64)),
        Workload("lookups-100k-width-4", spread(100_000, 1_000, 4), _reading(64)),
        Workload("mixed", small, _mixed(64)),
        Workload("capacity-100k-width-16", wider, _mixed(1_024)),
        Workload("heartbeats", small, _of_brokers(_heartbeats)),
        Workload("versions", small, _of_brokers(_versions)),
        Workload("register-10k", spread(10_000, 1, 1), _of_brokers(Table.registrations)),
        Workload("register-20", small, _unchanged(20)),
        Workload("register-20-changed", small, _changing(20)),
        Workload("register-1", small, _unchanged(1)),
        Workload("register-1-changed", small, _changing(1)),
        Workload("storm-idle", clustered, _readers),
        Workload("storm", clustered, _storming),
    )
    return {workload.name: workload for workload in found}


def _reading(connections: int) -> Groups:
    return lambda table, language: [Group("clients", table.lookups(language), connections)]


def _mixed(connections: int) -> Groups:
    """Each connection is a broker's. Every 20th call renews its registration, the others look up topics."""

    def groups(table: Table, language: Language) -> list[Group]:
        registrations, lookups = table.fill(language).calls, table.lookups(language)
        calls = [
            registrations[own % len(registrations)] if (turn + own) % 20 == 0 else lookups[turn * connections + own]
            for turn in range(len(lookups) // connections)
            for own in range(connections)
        ]
        return [Group("clients", calls, connections)]

    return groups


def _of_brokers(calls: Callable[[Table, Language], list[Call]]) -> Groups:
    """Calls of brokers, each over its broker's connection: RocketMQ's brokers have one, and it is their channel."""
    return lambda table, language: [Group("brokers", calls(table, language), connections=len(table.owners()))]


def _heartbeats(table: Table, language: Language) -> list[Call]:
    return [language.heartbeat(broker) for broker in range(len(table.owners()))]


def _versions(table: Table, language: Language) -> list[Call]:
    return [language.query_version(broker, _FILLED) for broker in range(len(table.owners()))]


def _unchanged(most: int) -> Groups:
    return _of_brokers(
        lambda table, language: [
            language.register(broker, topics[:most], _FILLED) for broker, topics in enumerate(table.owners())
        ]
    )


def _changing(most: int) -> Groups:
    return _of_brokers(lambda table, language: table.registrations(language, changed=True, most=most))


def _readers(table: Table, language: Language) -> list[Group]:
    return [Group("clients", table.lookups(language), connections=_READERS, in_flight=64, rate=_READERS_RATE)]


def _storming(table: Table, language: Language) -> list[Group]:
    return [*_readers(table, language), *_of_brokers(Table.registrations)(table, language)]
