"""The results that the programs of ``bench`` have written, for a report to read."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import Figure, read_figures
from bench.peers.summary import errors_of

Record = dict[str, Any]


class About(NamedTuple):
    """What a workload is."""

    says: str
    table: str
    """What the tables hold."""
    date: str
    commit: str


class Row(NamedTuple):
    """One kind of call of one workload on one server: medians of the rounds, and all errors."""

    server: str
    kind: str
    rate: float
    """Answers per second."""
    p50: float
    p95: float
    p99: float
    p99_9: float
    """Latencies in milliseconds."""
    cpu_micros: float
    """Server CPU of a call, all kinds of the workload together."""
    peak_mib: float
    errors: dict[str, int]


class Results:
    """The JSON files of a folder. A file that is not there has no figures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, dict[str, Any]] = {}

    def machine(self) -> dict[str, Any]:
        """Where the servers were compared."""
        facts: dict[str, Any] = self._of("peers")["machine"]
        return facts

    def measured(self, program: str) -> dict[str, dict[str, Any]]:
        """When, where and of which commit another program has measured, by workload."""
        facts: dict[str, dict[str, Any]] = self._of(program)["measured"]
        return facts

    def servers(self) -> dict[str, str]:
        """What was compared."""
        servers: dict[str, str] = self._of("peers")["servers"]
        return servers

    def workloads(self) -> list[str]:
        """Names of the workloads that were run."""
        return list(dict.fromkeys(record["workload"] for record in self._of("peers")["records"]))

    def records(self, workload: str, server: str) -> list[Record]:
        """The rounds of a workload on a server; none if it was not run."""
        records = self._of("peers")["records"]
        return [record for record in records if (record["workload"], record["server"]) == (workload, server)]

    def about(self, workload: str) -> About:
        """What a workload is, and when it was measured last."""
        record = next(record for record in reversed(self._of("peers")["records"]) if record["workload"] == workload)
        return About(record["says"], record["table"], record["measured"]["date"], record["measured"]["commit"])

    def rows(self, workload: str) -> list[Row]:
        """The medians of a workload."""
        return [
            row
            for server in self.servers()
            if (rounds := self.records(workload, server))
            for row in _rows(server, rounds)
        ]

    def figure(self, program: str, workload: str, name: str) -> tuple[float, ...]:
        """A figure of another program, of each round; empty if it was not measured."""
        found = (one.values for one in self.figures(program) if (one.workload, one.name) == (workload, name))
        return next(found, ())

    def figures(self, program: str) -> list[Figure]:
        """All figures of another program; none if it has not measured."""
        file = self._file(program)
        return read_figures(file) if file.exists() else []

    def _of(self, program: str) -> dict[str, Any]:
        """What a program has written."""
        if program not in self._read:
            self._read[program] = json.loads(self._file(program).read_text())
        return self._read[program]

    def _file(self, program: str) -> Path:
        return self._folder / f"{program}.json"


def rate(record: Record, kind: str) -> float:
    """Answers per second of a kind of call."""
    return float(tally(record, kind)["calls"] / record["seconds"])


def cpu_micros(record: Record) -> float:
    """Server CPU of a call, all kinds together."""
    calls = sum(kind["calls"] for group in record["groups"].values() for kind in group["kinds"].values())
    return float(record["server_cpu_seconds"] * 1e6 / calls)


def peak_mib(record: Record) -> float:
    """The most memory that the server's processes had."""
    return float(record["server_peak_memory_bytes"] / 2**20)


def tally(record: Record, kind: str) -> dict[str, Any]:
    """What came of the calls of one kind."""
    return next(group["kinds"][kind] for group in record["groups"].values() if kind in group["kinds"])


def _rows(server: str, rounds: list[Record]) -> list[Row]:
    kinds = [kind for group in rounds[0]["groups"].values() for kind in group["kinds"]]
    errors: dict[str, int] = {}
    for record in rounds:
        for error, count in errors_of(record).items():
            errors[error] = errors.get(error, 0) + count
    return [_row(server, kind, rounds, errors) for kind in kinds]


def _row(server: str, kind: str, rounds: list[Record], errors: dict[str, int]) -> Row:
    def latency(key: str) -> float:
        return statistics.median(float(tally(record, kind)["latency_ms"][key]) for record in rounds)

    return Row(
        server,
        kind,
        rate=statistics.median(rate(record, kind) for record in rounds),
        p50=latency("p50"),
        p95=latency("p95"),
        p99=latency("p99"),
        p99_9=latency("p99_9"),
        cpu_micros=statistics.median(map(cpu_micros, rounds)),
        peak_mib=statistics.median(map(peak_mib, rounds)),
        errors=errors,
    )
