"""Figures of all rounds of a run, and ratios between two servers of the same round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.figures import Figure, Sample, summarise
from bench.peers.servers import JAVA, NAIVE

RATE = "answers per second"
CPU = "server CPU per 1,000 calls"
P99 = "latency, p99"
PEAK = "peak resident memory"
LAST = "last answer after"
_PERCENTILES = {"p50": "latency, median", "p95": "latency, p95", "p99": P99, "p99_9": "latency, p99.9"}
_BEST_SMALL = (CPU, P99)

Record = dict[str, Any]


def figures_of(records: Iterable[Record]) -> list[Figure]:
    """The figures of each workload and server."""
    return summarise(sample for record in records for sample in _samples(record))


def ratios_of(figures: Sequence[Figure], peers: Sequence[str] = (JAVA, NAIVE)) -> list[Figure]:
    """How many times better than a peer each server was, round by round."""
    values = {(figure.workload, figure.name): figure.values for figure in figures}
    found = []
    for (title, name), own in values.items():
        workload, _, server = title.partition(": ")
        if server in peers:
            continue
        for peer in peers:
            other = values.get((f"{workload}: {peer}", name), ())
            if not name.startswith((RATE, *_BEST_SMALL)) or len(other) != len(own) or not all(own) or not all(other):
                continue
            small = name.startswith(_BEST_SMALL)
            ratios = [b / a if small else a / b for a, b in zip(own, other, strict=True)]
            found.append(Figure(f"{workload}: {server} against {peer}", name, "times better", tuple(ratios)))
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
    return samples
