"""Workloads on several servers, in turn within each round."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from bench.figures import machine, progress
from bench.peers import generator
from bench.peers.generator import Group, Plan
from bench.peers.recipes import Missing, RecipeFailed
from bench.peers.servers import JAVA, Server, server_cores, turned
from bench.peers.warm import first_warm
from bench.peers.workloads import Workload

UNPINNED = "-unpinned"
"""Ends the name of a workload in the results of servers that shared all cores with the load."""

_BEFORE_EACH_RUN_SECONDS = 1.0
"""Load before each run that is not measured."""
_WARM_UP_ROUND_SECONDS = 15.0
_FILL_CACHE_SECONDS = 5.0
"""Warm-up of servers that are not compiled while they run."""

Record = dict[str, Any]


class Measurement(NamedTuple):
    """What is to be measured."""

    workloads: Sequence[Workload]
    """Run one after the other on each server in each round. All have the same table."""
    servers: Sequence[str]
    rounds: int
    seconds: float
    """Duration of each run."""
    warm_up_seconds: float
    """Longest warm-up with each workload. Java's ends as soon as Java is warm."""
    pin: bool = True
    """Whether the server has one core for itself and the load the others."""


class Measuring:
    """Runs workloads on several servers, in turn within each round."""

    def __init__(self, what: Measurement, folder: Path) -> None:
        self._what = what
        self._folder = folder
        self._running: dict[str, Server] = {}
        self._calls: dict[tuple[str, str], tuple[Group | None, list[Group]]] = {}
        """The encoded calls by protocol and workload. Encoding takes seconds, so it is done once."""
        self._warm_ups: dict[str, list[tuple[float, float]]] = {}
        """Speed and seconds of the warm-up rounds, by workload, until a record has them."""
        facts = machine()
        self._measured = {"date": facts["date"], "commit": facts["commit"]}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        for server in self._running.values():
            server.__exit__(*details)

    def round(self, number: int) -> Iterator[Record]:
        """Runs all workloads on each server; skips a server that cannot run here, by name."""
        for name in turned(self._what.servers, number):
            server = self._running.get(name) or self._start(name)
            if server is None:
                continue
            for workload in self._what.workloads:
                progress(f"peers: {workload.name}, round {number} of {self._what.rounds}, {name}")
                try:
                    yield from self._run(server, workload, number)
                except RecipeFailed as error:
                    progress(f"peers: {name} is not measured: {error}")
            if not all(workload.rounds_share_servers for workload in self._what.workloads):
                self._running.pop(name).__exit__()

    def _start(self, name: str) -> Server | None:
        try:
            server = Server(name, server_cores(pin=self._what.pin)[0])
        except (Missing, RecipeFailed) as error:
            progress(f"peers: {name} is skipped: {error}")
            return None
        self._running[name] = server
        for workload in self._what.workloads:
            if not workload.rounds_share_servers:
                continue
            if name == JAVA:
                self._warm_ups[workload.name] = list(self._warm_up(server, workload))
            elif self._what.warm_up_seconds:
                self._generate(server, workload, min(_FILL_CACHE_SECONDS, self._what.warm_up_seconds))
        return server

    def _warm_up(self, server: Server, workload: Workload) -> Iterator[tuple[float, float]]:
        """Loads a server in rounds until it is warm or its time is over; yields the speed and seconds of each round."""
        limit = self._what.warm_up_seconds
        speeds: list[float] = []
        seconds: list[float] = []
        while sum(seconds) < limit and first_warm(speeds, seconds) is None:
            lasts = min(_WARM_UP_ROUND_SECONDS, limit - sum(seconds))
            outcome = self._generate(server, workload, lasts)
            if outcome is None:
                return
            speeds.append(self._speed(server, workload, outcome))
            seconds.append(lasts)
            progress(f"peers: {server.name} warms up, {workload.name}, round {len(speeds)}: {speeds[-1]:,.0f}/s")
            yield speeds[-1], lasts

    def _run(self, server: Server, workload: Workload, number: int) -> Iterator[Record]:
        outcome = self._generate(server, workload, self._what.seconds)
        if outcome is not None:
            yield {
                "workload": workload.name if self._what.pin else f"{workload.name}{UNPINNED}",
                "server": server.name,
                "round": number,
                "measured": self._measured,
                "table": workload.table.name,
                "says": workload.says,
                "speed": self._speed(server, workload, outcome),
                "warm_up": self._warm_ups.pop(workload.name, []) if server.name == JAVA else [],
                **outcome,
            }

    def _speed(self, server: Server, workload: Workload, outcome: Record) -> float:
        """Returns the figure that tells whether a server still gets faster.

        That is the rate of all calls that follow each other's answers. Where all calls come at fixed times, it is the
        rate that the used CPU time would allow.
        """
        _, groups = self._calls_of(server, workload)
        closed = [group.name for group in groups if group.rate is None]
        calls = sum(
            kind["calls"]
            for name, group in outcome["groups"].items()
            if not closed or name in closed
            for kind in group["kinds"].values()
        )
        return float(calls / (outcome["seconds"] if closed else max(outcome["server_cpu_seconds"], 0.01)))

    def _generate(self, server: Server, workload: Workload, seconds: float) -> Record | None:
        fill, groups = self._calls_of(server, workload)
        if not groups:
            return None
        server.settle()
        plan = Plan(
            target=server.target,
            protocol=server.protocol,
            server_pids=server.pids(),
            fill=fill,
            groups=groups,
            seconds=seconds,
            warm_up_seconds=_BEFORE_EACH_RUN_SECONDS if fill else 0.0,
            tls_ca=server.tls_ca,
        )
        folder = self._folder / workload.name
        folder.mkdir(exist_ok=True)
        with self._alone(server):
            return generator.run(plan, server_cores(pin=self._what.pin)[1], folder)

    @contextmanager
    def _alone(self, server: Server) -> Iterator[None]:
        """Stops all other servers: they share a core, and some have work to do seconds after their own run.

        ``sync`` does the same for the kernel: rust leaves a hundred megabytes of log to be written.
        """
        os.sync()
        others = [pid for other in self._running.values() if other is not server for pid in other.pids()]
        try:
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def _calls_of(self, server: Server, workload: Workload) -> tuple[Group | None, list[Group]]:
        key = server.protocol, workload.name
        if key not in self._calls:
            fill = workload.table.fill(server.language) if workload.is_filled else None
            self._calls[key] = fill, workload.groups(workload.table, server.language)
        return self._calls[key]


def measure(what: Measurement) -> list[Record]:
    """Runs all rounds.

    Raises:
        Missing, RecipeFailed: There is no load generator.
    """
    generator.program()
    with TemporaryDirectory() as folder, Measuring(what, Path(folder)) as measuring:
        return [record for number in range(1, what.rounds + 1) for record in measuring.round(number)]
