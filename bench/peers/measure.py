"""One workload on several servers, in turn within each round."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from bench.figures import machine, progress
from bench.peers import generator
from bench.peers.generator import Group, Plan
from bench.peers.recipes import Missing, RecipeFailed
from bench.peers.servers import JAVA, Server, server_cores, turned
from bench.peers.workloads import Workload

UNPINNED = "-unpinned"
"""Ends the name of a workload in the results of servers that shared all cores with the load."""

_WARM_UP_SECONDS = 1.0
"""Before each run, on servers that need no more."""

Record = dict[str, Any]


class Measurement(NamedTuple):
    """What is to be measured."""

    workload: Workload
    servers: list[str]
    rounds: int
    seconds: float
    """Of each run."""
    java_warm_up_seconds: float
    """A JVM compiles what it runs often; before that it is slow."""
    pin: bool
    """Whether the server has one core for itself and the load the others."""


class Measuring:
    """Runs one workload on several servers, in turn within each round."""

    def __init__(self, what: Measurement, folder: Path) -> None:
        self._what = what
        self._folder = folder
        self._running: dict[str, Server] = {}
        self._calls: dict[str, tuple[Group | None, list[Group]]] = {}
        """What is sent, by protocol: made once, as it takes its time."""
        facts = machine()
        self._measured = {"date": facts["date"], "commit": facts["commit"]}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        for server in self._running.values():
            server.__exit__(*details)

    def round(self, number: int) -> Iterator[Record]:
        """One run on each server; a server that cannot run here is skipped by name."""
        for name in turned(self._what.servers, number):
            server = self._running.get(name) or self._start(name)
            if server is None:
                continue
            progress(f"peers: {self._what.workload.name}, round {number} of {self._what.rounds}, {name}")
            try:
                yield from self._run(server, number)
            except RecipeFailed as error:
                progress(f"peers: {name} is not measured: {error}")
            if not self._what.workload.rounds_share_servers:
                self._running.pop(name).__exit__()

    def _start(self, name: str) -> Server | None:
        what = self._what
        try:
            server = Server(name, server_cores(pin=what.pin)[0])
        except (Missing, RecipeFailed) as error:
            progress(f"peers: {name} is skipped: {error}")
            return None
        self._running[name] = server
        if name == JAVA and what.workload.rounds_share_servers and what.java_warm_up_seconds:
            progress(f"peers: {name} is warmed up for {what.java_warm_up_seconds:g} s")
            self._generate(server, what.java_warm_up_seconds)
        return server

    def _run(self, server: Server, number: int) -> Iterator[Record]:
        what = self._what
        outcome = self._generate(server, what.seconds)
        if outcome is not None:
            workload = what.workload.name if what.pin else f"{what.workload.name}{UNPINNED}"
            about = {"workload": workload, "server": server.name, "round": number, "measured": self._measured}
            yield {**about, "table": what.workload.table.name, "says": what.workload.says, **outcome}

    def _generate(self, server: Server, seconds: float) -> Record | None:
        fill, groups = self._calls_of(server)
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
            warm_up_seconds=_WARM_UP_SECONDS if fill else 0.0,
            tls_ca=server.tls_ca,
        )
        with self._alone(server):
            return generator.run(plan, server_cores(pin=self._what.pin)[1], self._folder)

    @contextmanager
    def _alone(self, server: Server) -> Iterator[None]:
        """The servers share a core, so all others stand still: some have work to do seconds after their own turn.

        That is true also of what the kernel does for them: rust leaves a hundred megabytes of log to be written.
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

    def _calls_of(self, server: Server) -> tuple[Group | None, list[Group]]:
        if server.protocol not in self._calls:
            workload, language = self._what.workload, server.language
            fill = workload.table.fill(language) if workload.is_filled else None
            self._calls[server.protocol] = fill, workload.groups(workload.table, language)
        return self._calls[server.protocol]


def measure(what: Measurement) -> list[Record]:
    """Runs all rounds.

    Raises:
        Missing, RecipeFailed: There is no load generator.
    """
    generator.program()
    with TemporaryDirectory() as folder, Measuring(what, Path(folder)) as measuring:
        return [record for number in range(1, what.rounds + 1) for record in measuring.round(number)]
