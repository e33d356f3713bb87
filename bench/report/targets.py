"""The figures that the design wants, and how each is computed from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bench.peers.servers import JAVA, NAIVE
from bench.report.results import Record, Results, cpu_micros, peak_mib, rate, tally

_ENGINES = ("grpcio", "native")
_LOOKUP = "GetTopicRoute"
_PEERS = "python -m bench.peers --workload"


class Line(NamedTuple):
    """One measured figure beside its target."""

    what: str
    values: tuple[float, ...]
    """One of each round."""
    unit: str
    is_reached: bool | None
    """None where the design only asks for the figure."""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)


class Target(NamedTuple):
    """What is wanted."""

    figure: str
    text: str
    command: str
    lines: Callable[[Results], list[Line]]
    """What was measured of it; empty if nothing was."""


def _line(what: str, values: tuple[float, ...], unit: str, bound: Callable[[float], bool] | None) -> list[Line]:
    if not values:
        return []
    return [Line(what, values, unit, bound(statistics.median(values)) if bound else None)]


def _beside(
    results: Results, workloads: tuple[str, str], servers: tuple[str, str], value: Callable[[Record], float]
) -> tuple[float, ...]:
    """Our figure divided by the other one's of the same round."""
    ours, theirs = (results.records(*pair) for pair in zip(workloads, servers, strict=True))
    return tuple(value(own) / value(other) for own, other in zip(ours, theirs, strict=False))


def _p99(record: Record) -> float:
    return float(tally(record, _LOOKUP)["latency_ms"]["p99"])


def _lookup_rate(record: Record) -> float:
    return rate(record, _LOOKUP)


def _lookups(workload: str, times: float = 1.9) -> Target:
    def lines(results: Results) -> list[Line]:
        found: list[Line] = []
        for engine in _ENGINES:
            servers, wanted = (engine, JAVA), engine == "native"
            rates = _beside(results, (workload, workload), servers, _lookup_rate)
            late = _beside(results, (workload, workload), servers, _p99)
            found += _line(f"{engine}, rate", rates, "times Java's", (lambda ratio: ratio >= times) if wanted else None)
            found += _line(f"{engine}, p99", late, "times Java's", (lambda ratio: ratio <= 0.5) if wanted else None)
            costs = _beside(results, (workload, workload), servers, cpu_micros)
            found += _line(f"{engine}, server CPU of a call", costs, "times Java's", None)
        return found

    return Target(
        f"lookups, {workload}", f"native: {times:g} times Java's, half the p99", f"{_PEERS} {workload}", lines
    )


def _batches(results: Results) -> list[Line]:
    ours, theirs = results.records("batches", "grpcio"), results.records("lookups", JAVA)
    ratios = tuple(
        rate(own, "BatchGetTopicRoutes") * 100 / _lookup_rate(other) for own, other in zip(ours, theirs, strict=False)
    )
    return _line("grpcio", ratios, "times Java's lookups", lambda ratio: ratio >= 3)


def _memory(results: Results) -> list[Line]:
    workload = "lookups-100k-width-4"
    return [
        line
        for engine in _ENGINES
        for line in _line(
            engine,
            _beside(results, (workload, workload), (engine, JAVA), peak_mib),
            "times Java's",
            lambda ratio: ratio < 0.5,
        )
    ]


def _storm(results: Results) -> list[Line]:
    return [
        line
        for server in (*_ENGINES, JAVA)
        for storm in ("storm", "storm-changed")
        for line in _line(
            f"{server}, {storm}",
            _beside(results, (storm, "storm-idle"), (server, server), _p99),
            "times the idle p99",
            (lambda ratio: ratio < 2) if server != JAVA else None,
        )
    ]


def _signs_of_life(results: Results) -> list[Line]:
    return [
        line
        for engine in _ENGINES
        for workload in ("heartbeats", "versions")
        for line in _line(
            f"{engine}, {workload}",
            _beside(results, (workload, "lookups"), (engine, engine), cpu_micros),
            "times a lookup's CPU",
            lambda ratio: ratio <= 1.5,
        )
    ]


def _lookup_cost(results: Results) -> list[Line]:
    few, many = (results.records(f"lookups-{size}-width-4", "native") for size in ("1k", "100k"))
    beside_naive = _beside(results, ("lookups-100k-width-4",) * 2, ("native", NAIVE), cpu_micros)
    growth = tuple(cpu_micros(own) / cpu_micros(other) for own, other in zip(many, few, strict=False))
    return [
        *_line("native, 100,000 topics", tuple(map(cpu_micros, many)), "µs", lambda cost: cost <= 40),
        *_line("native, 100,000 topics", beside_naive, "times naive's", None),
        *_line("native, 100,000 against 1,000 topics", growth, "times", lambda ratio: ratio <= 1.2),
    ]


def _figures(
    program: str, unit: str, wanted: Mapping[str, tuple[str, str, float | None]], *, more_is_better: bool = False
) -> Callable[[Results], list[Line]]:
    """Figures of another program: what is shown, its workload and name, the most or least that it may be, if any."""

    def lines(results: Results) -> list[Line]:
        return [
            line
            for what, (workload, name, bound) in wanted.items()
            for line in _line(
                what,
                results.figure(program, workload, name),
                unit,
                None if bound is None else _reaches(bound) if more_is_better else _within(bound),
            )
        ]

    return lines


def _within(most: float) -> Callable[[float], bool]:
    return lambda value: value <= most


def _reaches(least: float) -> Callable[[float], bool]:
    return lambda value: value >= least


_REGISTRATION = "full registration of 10,000 topics"
_DETECTION = "a name server with default settings, and a group of three brokers"
_EXPIRY = "expiry of 1,000 of 10,000 brokers"
_TOLD_MILLIS = {"grpcio": 150.0, "native": 20.0}

_SNAPSHOT = "100,000 topics x 1,000 brokers x width 16: 1,600,000 queue rows"
_SNAPSHOTS = (
    "100,000 topics x 1,000 brokers x width 10: 1,000,000 queue rows",
    "100,000 topics x 1,000 brokers x width 100: 10,000,000 queue rows",
)
"""A small one and a large one, whose memory is compared."""
_START = "start of an ingest"
_READ = "30 topics of one broker, read by a Spark that is up"
_FOLLOW = "follow, a batch each second"
_PIPELINE = "python -m bench.pipeline --only"


def _pipeline_memory(results: Results) -> list[Line]:
    found: list[Line] = []
    for what, name in (("Java", "most memory of Java"), ("a Python worker", "of one Python worker")):
        small, large = (results.figure("pipeline", snapshot, f"ingest: {name}") for snapshot in _SNAPSHOTS)
        ratios = tuple(more / less for more, less in zip(large, small, strict=False))
        found += _line(what, ratios, "times that of 1,000,000 rows", _within(1.2))
    return found


def _pipeline_start(results: Results) -> list[Line]:
    new, long = (
        results.figure("pipeline", _START, f"the command, on {log}")
        for log in ("a new log", "a log of 100,000 batches")
    )
    longer = tuple(one - other for one, other in zip(long, new, strict=False))
    return _line("longer than on a new log", longer, "s", _within(2))


def _questions(results: Results) -> list[Line]:
    found: list[Line] = []
    for place in ("on a disk", "on S3"):
        for question in ("history", "as-of", "divergence", "report"):
            before, after = (
                results.figure("pipeline", f"1,000 batches {place}", f"{question}, {when} compaction")
                for when in ("before", "after")
            )
            ratios = tuple(one / other for one, other in zip(after, before, strict=False))
            found += _line(f"{place}, {question}", ratios, "times before's", None)
    return found


TARGETS = [
    *map(_lookups, ("lookups", "capacity-20k-width-1", "capacity-100k-width-4")),
    _lookups("capacity-100k-width-16", times=4),
    Target("routes by BatchGetTopicRoutes", "grpcio: 3 times Java's lookups", f"{_PEERS} batches", _batches),
    Target("memory, 100,000 topics x width 4", "below half of Java's", f"{_PEERS} lookups-100k-width-4", _memory),
    Target("lookups while 32 brokers register", "p99 below twice the idle one", f"{_PEERS} storm", _storm),
    Target("heartbeat, unchanged QueryDataVersion", "within 1.5 lookups", f"{_PEERS} heartbeats", _signs_of_life),
    Target(
        "server CPU of a lookup, width 4",
        "native 40 µs; 20 % more from 1,000 to 100,000 topics",
        f"{_PEERS} lookups-100k-width-4",
        _lookup_cost,
    ),
    Target(
        "full registration of 10,000 topics",
        "unchanged 3, changed 15, first 40 ms",
        "python -m bench.core",
        _figures(
            "core",
            "ms",
            {
                "unchanged": (_REGISTRATION, "unchanged", 3),
                "one topic changed": (_REGISTRATION, "one topic changed", 15),
                "all topics changed": (_REGISTRATION, "all topics changed", 15),
                "first": (_REGISTRATION, "first", 40),
            },
        ),
    ),
    Target(
        "expiry of 1,000 of 10,000 brokers",
        "5 ms",
        "python -m bench.core",
        _figures(
            "core",
            "ms",
            {
                "event loop held up": (_EXPIRY, "longest time that the event loop is held up", 5),
                "all together": (_EXPIRY, "all together", 5),
            },
        ),
    ),
    Target(
        "a change told to 1,000 watchers",
        "p99 below 150 ms, native 20 ms",
        "python -m bench.watchers",
        _figures(
            "watchers",
            "ms",
            {
                engine: (f"{engine}: 1,000 watchers of one topic", "one topic changes: told, p99", _TOLD_MILLIS[engine])
                for engine in _ENGINES
            },
        ),
    ),
    Target(
        "a lost broker is gone from routes",
        "killed 1 s, stopped or cut off 15 s",
        "python -m tools.faults.load.detection",
        _figures(
            "detection",
            "s",
            {
                "killed": (_DETECTION, "broker killed", 1),
                "stopped": (_DETECTION, "broker stopped", 15),
                "cut off": (_DETECTION, "broker cut off", 15),
            },
        ),
    ),
    Target(
        "snapshot of 1,600,000 queue rows into Parquet, Spark on two cores",
        "600,000 rows/s, on S3 300,000",
        f"{_PIPELINE} bulk-posix bulk-s3",
        _figures(
            "pipeline",
            "rows/s",
            {
                "data source alone": (_SNAPSHOT, "data source into Parquet, again", 600_000),
                "ingest": (_SNAPSHOT, "ingest, again", 600_000),
                "ingest, on S3": (f"{_SNAPSHOT}, on S3", "ingest, again", 300_000),
            },
            more_is_better=True,
        ),
    ),
    Target(
        "the same rows to a Python client that only counts them",
        "3,000,000 rows/s",
        f"{_PIPELINE} bulk-posix",
        _figures(
            "pipeline",
            "rows/s",
            {"client": (_SNAPSHOT, "Python client that only counts", 3_000_000)},
            more_is_better=True,
        ),
    ),
    Target(
        "memory of an ingest of 10,000,000 rows",
        "that of 1,000,000 rows: at most 1.2 times",
        f"{_PIPELINE} bulk-posix",
        _pipeline_memory,
    ),
    Target("ingest on a log of 100,000 batches", "less than 2 s longer", f"{_PIPELINE} start", _pipeline_start),
    Target(
        "questions to a log of 1,000 batches, once it is compacted",
        "",
        f"{_PIPELINE} operations-posix operations-s3",
        _questions,
    ),
    Target(
        "batch read of 30 topics, in a Spark that is up",
        "below 1 s",
        f"{_PIPELINE} small-read",
        _figures(
            "pipeline",
            "s",
            {
                "first": (_READ, "first read", 1),
                "first, not warmed up": (_READ, "first read, not warmed up", None),
                "again": (_READ, "read again", 1),
            },
        ),
    ),
    Target(
        "from a change to its row in the log, follow --every 1",
        "",
        f"{_PIPELINE} change-to-row",
        _figures(
            "pipeline",
            "s",
            {
                "p50": (_FOLLOW, "from a change to its row", None),
                "p99": (_FOLLOW, "99 of 100 changes, up to", None),
            },
        ),
    ),
]
