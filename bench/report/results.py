"""The results that the programs of ``bench`` have written, for a report to read."""

from __future__ import annotations

import json
import statistics
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

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

    def machine(self) -> dict[str, Any]:
        """Where the servers were compared."""
        facts: dict[str, Any] = self._peers["machine"]
        return facts

    def servers(self) -> dict[str, str]:
        """What was compared."""
        servers: dict[str, str] = self._peers["servers"]
        return servers

    def workloads(self) -> list[str]:
        """Names of the workloads that were run."""
        return list(dict.fromkeys(record["workload"] for record in self._peers["records"]))

    def records(self, workload: str, server: str) -> list[Record]:
        """The rounds of a workload on a server; none if it was not run."""
        records = self._peers["records"]
        return [record for record in records if (record["workload"], record["server"]) == (workload, server)]

    def about(self, workload: str) -> About:
        """What a workload is, and when it was measured last."""
        record = next(record for record in reversed(self._peers["records"]) if record["workload"] == workload)
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
        file = self._folder / f"{program}.json"
        if not file.exists():
            return ()
        for figure in json.loads(file.read_text())["figures"]:
            if (figure["workload"], figure["name"]) == (workload, name):
                return tuple(figure["values"])
        return ()

    @cached_property
    def _peers(self) -> dict[str, Any]:
        peers: dict[str, Any] = json.loads((self._folder / "peers.json").read_text())
        return peers


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
