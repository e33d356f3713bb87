"""Measurements in steps, each one workload on some servers, and the rows of a page that compare rounds with Java's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bench.figures import shown
from bench.load import open_many_files
from bench.peers.measure import UNPINNED, Measurement, measure
from bench.peers.servers import JAVA
from bench.peers.workloads import all_workloads
from bench.report.results import Record, cpu_micros, peak_mib, rate, tally


class Step(NamedTuple):
    """One workload on some servers."""

    workload: str
    call: str
    """The kind of call that is looked at."""
    servers: tuple[str, ...]
    rounds: int = 3
    seconds: float = 4.0
    java_warm_up: float = 20.0
    pin: bool = True

    @property
    def name(self) -> str:
        """Of the workload in the results."""
        return self.workload if self.pin else self.workload + UNPINNED


def measure_steps(steps: Sequence[Step], records: list[Record], seconds: float | None, scale: float) -> None:
    """Runs all steps.

    Args:
        steps: What to run.
        records: Get what was measured, step by step: a fault at the end must not cost what was before it.
        seconds: Of each run, of which each step has one; None: as the steps say.
        scale: Size of the tables.
    """
    open_many_files()
    known = {workload.name: workload for workload in all_workloads(scale)}
    for step in steps if seconds is None else dict.fromkeys(steps):
        trial = step if seconds is None else step._replace(rounds=1, seconds=seconds, java_warm_up=seconds)
        what = Measurement(
            known[step.workload], list(trial.servers), trial.rounds, trial.seconds, trial.java_warm_up, pin=trial.pin
        )
        before = len(_rounds(records, step.name, step.servers[0]))
        records.extend({**record, "round": before + record["round"]} for record in measure(what))


def table_of(steps: Sequence[Step], records: Sequence[Record]) -> Iterator[str]:
    """The lines of a table of all steps; one that comes again has its rounds in one line."""
    yield "| workload | server | answers/s | p99 ms | CPU µs a call | peak MiB | rate beside Java | beside it (CPU) |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for step in dict.fromkeys(steps):
        for server in step.servers:
            rounds = _rounds(records, step.name, server)
            if rounds:
                java = _rounds(records, step.name, JAVA) if server != JAVA else []
                yield _row(server, step, rounds, java)


def _rounds(records: Sequence[Record], workload: str, server: str) -> list[Record]:
    return [record for record in records if (record["workload"], record["server"]) == (workload, server)]


def _row(server: str, step: Step, rounds: Sequence[Record], java: Sequence[Record]) -> str:
    def of_rounds(value: Callable[[Record], float]) -> str:
        return _with_range(tuple(map(value, rounds)))

    def call_rate(record: Record) -> float:
        return rate(record, step.call)

    rates = tuple(call_rate(own) / call_rate(other) for own, other in zip(rounds, java, strict=False))
    costs = tuple(cpu_micros(other) / cpu_micros(own) for own, other in zip(rounds, java, strict=False))
    cells = (
        of_rounds(call_rate),
        of_rounds(lambda record: float(tally(record, step.call)["latency_ms"]["p99"])),
        of_rounds(cpu_micros),
        shown(max(map(peak_mib, rounds))),
        _with_range(rates),
        _with_range(costs),
    )
    return f"| {step.name} | {server} | {' | '.join(cells)} |"


def _with_range(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{shown(statistics.median(values))} ({shown(min(values))} to {shown(max(values))})"
