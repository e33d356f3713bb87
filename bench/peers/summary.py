"""Figures of all rounds of a run, and ratios to a warm peer of the same round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.figures import Figure, Sample, summarise
from bench.peers.measure import Record
from bench.peers.servers import JAVA
from bench.peers.warm import Warm, first_warm

RATE = "answers per second"
CPU = "server CPU per 1,000 calls"
P50 = "latency, median"
P99 = "latency, p99"
P99_9 = "latency, p99.9"
PEAK = "peak resident memory"
LAST = "last answer after"
SPEED = "speed of all rounds, warm-up first"
SECONDS = "seconds of all rounds, warm-up first"
_PERCENTILES = {"p50": P50, "p95": "latency, p95", "p99": P99, "p99_9": P99_9}
_BEST_SMALL = (CPU, P99)

Values = Mapping[tuple[str, str], tuple[float, ...]]
"""The rounds of figures by workload and name."""


class Ratio(NamedTuple):
    """A server's figure compared with that of a peer."""

    warm: Warm | None
    """The first warm round of the peer; None if it never became warm."""
    values: tuple[float, ...]
    """One ratio for each measured round in which the peer was warm."""


def figures_of(records: Iterable[Record]) -> list[Figure]:
    """The figures of each workload and server."""
    return summarise(sample for record in records for sample in _samples(record))


def values_of(figures: Iterable[Figure]) -> Values:
    """The rounds of each figure by workload and name."""
    return {(figure.workload, figure.name): figure.values for figure in figures}


def ratio_of(values: Values, workload: str, server: str, name: str) -> Ratio:
    """Divides a figure by that of Java, in the rounds in which Java was warm.

    Args:
        values: The figures.
        workload: Name of the workload.
        server: Name of the server.
        name: Name of the figure.
    """
    own, other = (values.get((f"{workload}: {one}", name), ()) for one in (server, JAVA))
    speeds, seconds = (values.get((f"{workload}: {JAVA}", one), ()) for one in (SPEED, SECONDS))
    warm = first_warm(speeds, seconds)
    if warm is None or len(own) != len(other):
        return Ratio(warm, ())
    measured_before = max(0, warm.round - 1 - (len(speeds) - len(other)))
    return Ratio(warm, tuple(a / b for a, b in list(zip(own, other, strict=True))[measured_before:] if b))


def ratios_of(figures: Sequence[Figure]) -> list[Figure]:
    """How many times better than warm Java each server was, round by round."""
    values = values_of(figures)
    found = []
    for title, name in values:
        workload, _, server = title.partition(": ")
        if server == JAVA or not name.startswith((RATE, *_BEST_SMALL)):
            continue
        ratios = ratio_of(values, workload, server, name).values
        if name.startswith(_BEST_SMALL):
            ratios = tuple(1 / ratio for ratio in ratios if ratio)
        if ratios:
            found.append(Figure(f"{workload}: {server} compared with {JAVA}", name, "times better", ratios))
    return found


def errors_of(record: Record) -> dict[str, int]:
    """Errors of a run by kind."""
    errors: dict[str, int] = {}
    for group in record["groups"].values():
        for kind in group["kinds"].values():
            for error, count in kind["errors"].items():
                errors[error] = errors.get(error, 0) + count
        if group["unanswered"]:
            errors["unanswered"] = errors.get("unanswered", 0) + group["unanswered"]
    return errors


def _samples(record: Record) -> list[Sample]:
    title = f"{record['workload']}: {record['server']}"
    samples: list[Sample] = []

    def note(name: str, unit: str, value: float) -> None:
        samples.append(Sample(title, name, unit, value))

    calls = 0
    for group in record["groups"].values():
        for kind, tally in group["kinds"].items():
            calls += tally["calls"]
            if not tally["calls"]:
                continue
            note(f"{RATE}, {kind}", "1/s", tally["calls"] / record["seconds"])
            for key, name in _PERCENTILES.items():
                note(f"{name}, {kind}", "ms", tally["latency_ms"][key])
            note(f"bytes an answer, {kind}", "B", tally["bytes_received"] / tally["calls"])
        note(LAST, "s", group["last_answer_seconds"])
    note(CPU, "ms", record["server_cpu_seconds"] * 1e6 / max(calls, 1))
    note("load's CPU per 1,000 calls", "ms", record["load_cpu_seconds"] * 1e6 / max(calls, 1))
    note("share of a core that the load had", "", record["load_cpu_seconds"] / record["seconds"])
    note(PEAK, "MiB", record["server_peak_memory_bytes"] / 2**20)
    note("filling the table", "s", record["fill_seconds"])
    note("errors", "calls", sum(errors_of(record).values()))
    if record["server"] == JAVA:
        for speed, seconds in [*record["warm_up"], (record["speed"], record["seconds"])]:
            note(SPEED, "1/s", speed)
            note(SECONDS, "s", seconds)
    return samples
