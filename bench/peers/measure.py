"""Workloads on several servers, in turn within each round, and rates compared with a warm peer of the same rounds."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.figures import Sample, progress
from bench.peers import generator
from bench.peers.generator import Group, NotMeasured, Plan
from bench.peers.servers import JAVA, Server, server_cores, turned
from bench.peers.workloads import Workload
from tests.support.programs.processes import sample

RATE = "answers per second"
CPU = "server CPU per 1,000 calls"
P99 = "latency, p99"
PEAK = "peak resident memory"
SPEED = "speed of all rounds, warm-up first"
SECONDS = "seconds of all rounds, warm-up first"
_BEFORE_EACH_RUN_SECONDS = 5.0
"""Load before each run that is not measured. Where brokers leave between runs, it fills the cache again."""
_WARM_UP_ROUND_SECONDS = 15.0
_FILL_CACHE_SECONDS = 5.0
"""Warm-up of servers that are not compiled while they run."""
STEADY_SHARE = 0.05
"""Two consecutive rounds that differ by less than this share are steady."""
LOADED_SECONDS = 180.0

Values = Mapping[tuple[str, str], Sequence[float]]
"""The rounds of figures by workload and name."""


class Warm(NamedTuple):
    """The first warm round of a peer. All rounds after it are warm, too."""

    round: int
    """Counted from 1, warm-up rounds included."""
    is_steady: bool
    """Whether the round was steady; otherwise the peer had been loaded for three minutes before it."""

    def __str__(self) -> str:
        return f"round {self.round}, {'steady' if self.is_steady else 'loaded for three minutes'}"


def first_warm(speeds: Sequence[float], seconds: Sequence[float]) -> Warm | None:
    """The first warm round, or None if no round was warm.

    Args:
        speeds: Answers per second in each round, the first one after the start first.
        seconds: Duration of each round.
    """
    loaded, before = 0.0, 0.0
    for number, (speed, lasted) in enumerate(zip(speeds, seconds, strict=True), 1):
        is_steady = abs(speed - before) < STEADY_SHARE * before
        if is_steady or loaded >= LOADED_SECONDS:
            return Warm(number, is_steady)
        loaded, before = loaded + lasted, speed
    return None


def ratio_of(values: Values, workload: str, server: str, name: str) -> tuple[Warm | None, tuple[float, ...]]:
    """Java's first warm round, and a figure divided by Java's in each measured round in which Java was warm."""
    own, other = (values.get((f"{workload}: {one}", name), ()) for one in (server, JAVA))
    speeds, seconds = (values.get((f"{workload}: {JAVA}", one), ()) for one in (SPEED, SECONDS))
    warm = first_warm(speeds, seconds)
    if warm is None or len(own) != len(other):
        return warm, ()
    measured_before = max(0, warm.round - 1 - (len(speeds) - len(other)))
    return warm, tuple(a / b for a, b in list(zip(own, other, strict=True))[measured_before:] if b)


class Effort(NamedTuple):
    """How much is measured."""

    rounds: int = 3
    seconds: float = 4.0
    """Duration of each run."""
    warm_up_seconds: float = LOADED_SECONDS
    """Longest warm-up with each workload. Java's ends as soon as Java is warm."""
    scale: float = 1.0
    """Size of the tables."""


def measure(workloads: Sequence[Workload], servers: Sequence[str], effort: Effort) -> Iterator[Sample]:
    """Runs all workloads, which have one table, on each server in each round. A server that cannot run is left out."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for 1,024 connections and more
    with TemporaryDirectory() as folder, ExitStack() as stack:
        running: list[_Running] = []
        for name in servers:
            try:
                server = stack.enter_context(Server(name, server_cores()[0]))
            except NotMeasured as error:
                progress(f"peers: {name} is left out: {error}")
                continue
            running.append(_Running(server, running, Path(folder)))
            for workload in workloads:
                yield from running[-1].warm_up(workload, effort.warm_up_seconds)
        for number in range(1, effort.rounds + 1):
            for one in turned(running, number):
                for workload in workloads:
                    progress(f"peers: {workload.name}, round {number} of {effort.rounds}, {one.server.name}")
                    yield from one.samples(workload, one.run(workload, effort.seconds), effort.seconds)


class _Running:
    """A server that runs, and its encoded calls. Encoding takes seconds, so it is done once."""

    def __init__(self, server: Server, all_running: Sequence[_Running], folder: Path) -> None:
        self.server = server
        self._all_running = all_running
        self._folder = folder
        self._calls: dict[str, tuple[Group, list[Group]]] = {}

    def warm_up(self, workload: Workload, limit: float) -> Iterator[Sample]:
        """Loads Java in rounds until it is warm or its time is over, and the others for some seconds."""
        if self.server.name != JAVA:
            if limit:
                self.run(workload, min(_FILL_CACHE_SECONDS, limit))
            return
        speeds: list[float] = []
        seconds: list[float] = []
        while sum(seconds) < limit and first_warm(speeds, seconds) is None:
            lasts = min(_WARM_UP_ROUND_SECONDS, limit - sum(seconds))
            *_, speed, lasted = self.samples(workload, self.run(workload, lasts), lasts)
            progress(f"peers: java warms up, {workload.name}, round {len(speeds) + 1}: {speed.value:,.0f}/s")
            speeds.append(speed.value)
            seconds.append(lasts)
            yield from (speed, lasted)

    def run(self, workload: Workload, seconds: float) -> dict[str, Any]:
        """Loads the server; returns what the load generator measured. Raises NotMeasured."""
        language = self.server.language
        if workload.name not in self._calls:
            self._calls[workload.name] = workload.table.fill(language), workload.groups(workload.table, language)
        fill, groups = self._calls[workload.name]
        self.server.settle()
        folder = self._folder / workload.name
        folder.mkdir(exist_ok=True)
        plan = Plan(
            self.server.target,
            language.protocol,
            self.server.pid,
            fill,
            groups,
            seconds,
            _BEFORE_EACH_RUN_SECONDS,
            self.server.tls_ca,
        )
        os.sync()
        # They share a core, and some have work to do seconds after their own run.
        others = [other.server.pid for other in self._all_running if other is not self]
        try:
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            return generator.run(plan, server_cores()[1], folder)
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def samples(self, workload: Workload, outcome: dict[str, Any], seconds: float) -> Iterator[Sample]:
        """The figures of a run. Java's have its speed last, which tells whether it still gets faster.

        That is the rate of all calls that follow each other's answers. Where all calls come at fixed times, it is the
        rate that the used CPU time would allow. Raises NotMeasured if a call failed.
        """
        title = f"{workload.name}: {self.server.name}"
        kinds = {
            (group, kind): tally
            for group, found in outcome["groups"].items()
            for kind, tally in found["kinds"].items()
            if tally["calls"]
        }
        errors = [f"{kind}: {tally['errors']}" for (_, kind), tally in kinds.items() if tally["errors"]]
        errors += [f"{name}: unanswered" for name, found in outcome["groups"].items() if found["unanswered"]]
        if errors:
            raise NotMeasured(f"{title}: {'; '.join(errors)}")
        for (_, kind), tally in kinds.items():
            yield Sample(title, f"{RATE}, {kind}", "1/s", tally["calls"] / seconds)
            yield Sample(title, f"{P99}, {kind}", "ms", tally["p99_ms"])
        calls = sum(tally["calls"] for tally in kinds.values())
        yield Sample(title, CPU, "ms", outcome["server_cpu_seconds"] * 1e6 / max(calls, 1))
        yield Sample(title, PEAK, "MiB", sample(self.server.pid)["peak_kib"] / 1024)
        if self.server.name == JAVA:
            closed = {group.name for group in self._calls[workload.name][1] if group.rate is None}
            counted = sum(tally["calls"] for (group, _), tally in kinds.items() if group in closed or not closed)
            spent = seconds if closed else max(outcome["server_cpu_seconds"], 0.01)
            yield Sample(title, SPEED, "1/s", counted / spent)
            yield Sample(title, SECONDS, "s", seconds)
