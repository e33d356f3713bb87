"""The workloads, by name: what the table holds, who calls what, and how."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.peers.calls import Call, Grpc, Language, Topics
from bench.peers.generator import Group
from bench.workload import SEED, Profile

FILL_COUNTER = 1
"""Counter of the data versions that the table is filled with."""
_CALLS = 50_000
"""Length of a list of lookups; it starts again when it is through."""
_FILL_IN_FLIGHT = 4
_BATCH = 100
_WRITE_PERCENT = 5
_READERS_RATE = 500.0
_READERS = 32


class Table(NamedTuple):
    """Which broker has which topics."""

    topics: int
    owners: Callable[[], list[Topics]]
    """Topics of each broker."""
    name: str

    def fill(self, language: Language) -> Group:
        """Registers everybody."""
        calls = [language.register(broker, topics, FILL_COUNTER) for broker, topics in enumerate(self.owners())]
        return Group("fill", calls, connections=1, in_flight=_FILL_IN_FLIGHT, limit=len(calls))


class Workload(NamedTuple):
    """What one run does."""

    name: str
    says: str
    """What it is, for a reader."""
    table: Table
    groups: Callable[[Table, Language], list[Group]]
    is_filled: bool = True
    """Whether the table is filled before."""
    rounds_share_servers: bool = True
    """Whether the rounds use the same processes; otherwise each starts anew."""


def spread_table(profile: Profile, scale: float = 1.0) -> Table:
    """Topics over random brokers; a scale below 1 makes it smaller."""
    small = profile._replace(
        topics=int(profile.topics * scale), brokers=max(profile.width, int(profile.brokers * scale))
    )
    return Table(small.topics, lambda: [*small.topics_of_brokers()], small.name)


def clustered_table(scale: float = 1.0, clusters: int = 4, brokers: int = 8, topics: int = 10_000) -> Table:
    """The shape of RocketMQ's own benchmarks: each cluster has its topics, and each of its brokers has all of them."""
    each = int(topics * scale)

    def owners() -> list[Topics]:
        # Brokers belong to clusters by their number, in turn.
        return [range(start := broker % clusters * each, start + each) for broker in range(clusters * brokers)]

    name = f"{clusters} clusters x {brokers} brokers x {each:,} topics"
    return Table(each * clusters, owners, name)


def all_workloads(scale: float = 1.0) -> list[Workload]:
    """Every workload; a scale below 1 makes tables smaller, and nothing else."""
    small = spread_table(Profile(20_000, 1_000, 1), scale)
    few = spread_table(Profile(1_000, 1_000, 4), scale)
    middle = spread_table(Profile(100_000, 1_000, 4), scale)
    wide = spread_table(Profile(100_000, 1_000, 16), scale)
    wide_few = spread_table(Profile(20_000, 1_000, 16), scale)
    one = spread_table(Profile(10_000, 1, 1), scale)
    storm = clustered_table(scale)
    reading = "lookups of random topics"
    mixed = f"{100 - _WRITE_PERCENT} % lookups, {_WRITE_PERCENT} % unchanged full registrations"
    return [
        Workload("lookups", f"{reading}, 64 connections", small, lookups(64)),
        Workload("capacity-20k-width-1", f"{mixed}, 64 connections", small, capacity(64)),
        Workload("capacity-100k-width-4", f"{mixed}, 256 connections", middle, capacity(256)),
        Workload("capacity-100k-width-16", f"{mixed}, 1,024 connections", wide, capacity(1_024)),
        Workload("capacity-20k-width-16", f"{mixed}, 64 connections", wide_few, capacity(64)),
        Workload("lookups-20k-width-16", f"{reading}, 64 connections", wide_few, lookups(64)),
        Workload("lookups-1k-width-4", f"{reading}, 64 connections", few, lookups(64)),
        Workload("lookups-100k-width-4", f"{reading}, 64 connections", middle, lookups(64)),
        *(
            Workload(f"connections-{count}", f"{reading}, {count:,} connections", small, lookups(count))
            for count in (1, 256, 1_024)  # 64 are those of the first
        ),
        Workload("steady", f"{reading}, 2,000 a second whatever comes back, 64 connections", small, steady(2_000)),
        Workload("heartbeats", "heartbeats, 64 connections", small, signs_of_life("heartbeat")),
        Workload("versions", "QueryDataVersion, unchanged, 64 connections", small, signs_of_life("version")),
        Workload("register-10k", "one broker registers 10,000 topics, a new version each time", one, registering),
        Workload("register-20", "every broker registers its topics, unchanged, 64 connections", small, renewing),
        Workload(
            "register-1",
            "every broker registers one of its topics, changed, a new version each time, 64 connections",
            small,
            registering_one,
        ),
        Workload("batches", f"{_BATCH} topics a call, 16 connections", small, batches),
        Workload("storm-idle", f"{_READERS_RATE:,.0f} lookups a second and nothing else", storm, readers),
        Workload(
            "storm", "the same while every broker registers all the time, a new version each time", storm, storming
        ),
        Workload(
            "storm-changed", "the same with other queue counts of all topics each time", storm, storming_with_changes
        ),
        Workload(
            "cold-restart",
            "1,000 brokers register at once with a name server that has just started",
            middle,
            returning,
            is_filled=False,
            rounds_share_servers=False,
        ),
    ]


def lookups(connections: int) -> Callable[[Table, Language], list[Group]]:
    """Each connection asks, waits for the answer, and asks again."""
    return lambda table, language: [Group("clients", [*_lookups(table, language)], connections)]


def steady(rate: float) -> Callable[[Table, Language], list[Group]]:
    """Calls come at their times; latency counts from these."""
    return lambda table, language: [
        Group("clients", [*_lookups(table, language)], connections=64, in_flight=64, rate=rate)
    ]


def capacity(connections: int) -> Callable[[Table, Language], list[Group]]:
    """Lookups and registrations in one random order."""

    def groups(table: Table, language: Language) -> list[Group]:
        rng = random.Random(SEED)
        registrations = table.fill(language).calls
        calls = [
            rng.choice(registrations) if rng.randrange(100) < _WRITE_PERCENT else lookup
            for lookup in _lookups(table, language)
        ]
        return [Group("clients", calls, connections)]

    return groups


def signs_of_life(what: str) -> Callable[[Table, Language], list[Group]]:
    """What brokers send that have nothing new."""

    def groups(table: Table, language: Language) -> list[Group]:
        brokers = range(len(table.owners()))
        calls = [
            language.heartbeat(broker) if what == "heartbeat" else language.query_version(broker, FILL_COUNTER)
            for broker in brokers
        ]
        return [Group("brokers", calls, connections=64)]

    return groups


def batches(table: Table, language: Language) -> list[Group]:
    """Many routes in one call. RocketMQ has no such call: nothing to do there."""
    if not isinstance(language, Grpc):
        return []
    rng = random.Random(SEED)
    calls = [
        language.batch(rng.sample(range(table.topics), min(_BATCH, table.topics))) for _ in range(_CALLS // _BATCH)
    ]
    return [Group("clients", calls, connections=16)]


def registering(table: Table, language: Language) -> list[Group]:
    """Every broker registers with a new version of the same table, over one connection."""
    calls = [
        language.register(broker, topics, FILL_COUNTER + 1 + turn)
        for turn in range(2)
        for broker, topics in enumerate(table.owners())
    ]
    return [Group("brokers", calls, connections=1)]


def renewing(table: Table, language: Language) -> list[Group]:
    """Every broker registers what it had registered before, as brokers do twice a minute."""
    return [Group("renewals", table.fill(language).calls, connections=64)]


def registering_one(table: Table, language: Language) -> list[Group]:
    """Every broker tells of one topic with other queue counts, as RocketMQ's do when a topic has changed."""
    owners = table.owners()
    calls = [
        language.register(broker, topics[:1], FILL_COUNTER + 1 + turn, changed=turn == 0)
        for turn in range(2)
        for broker, topics in enumerate(owners)
    ]
    return [Group("changes", calls, connections=64)]


def readers(table: Table, language: Language) -> list[Group]:
    """Clients that look up now and then."""
    calls = [*_lookups(table, language)]
    return [Group("clients", calls, connections=_READERS, in_flight=64, rate=_READERS_RATE)]


def storming(table: Table, language: Language) -> list[Group]:
    """Every broker registers with a new version of the same table, and again as soon as it is answered."""
    return [*readers(table, language), _storm(table, language, changed=False)]


def storming_with_changes(table: Table, language: Language) -> list[Group]:
    """Every broker registers with other queue counts, and again as soon as it is answered."""
    return [*readers(table, language), _storm(table, language, changed=True)]


def returning(table: Table, language: Language) -> list[Group]:
    """Every broker registers once, over a connection of its own, all at once."""
    fill = table.fill(language)
    return [Group("brokers", fill.calls, connections=len(fill.calls), limit=len(fill.calls))]


def _storm(table: Table, language: Language, *, changed: bool) -> Group:
    owners = table.owners()
    calls = [
        language.register(broker, topics, FILL_COUNTER + 1 + turn, changed=changed and turn == 0)
        for turn in range(2)
        for broker, topics in enumerate(owners)
    ]
    return Group("brokers", calls, connections=len(owners))


def _lookups(table: Table, language: Language) -> Iterator[Call]:
    rng = random.Random(SEED)
    known = {topic: language.lookup(topic) for topic in range(table.topics)}
    return (known[rng.randrange(table.topics)] for _ in range(_CALLS))
