"""Thousands of connections at once, first idle and then told to go: ``python -m tests.faults.load.many``.

Prints what each takes of memory, how lookups of another client fare beside them, and how the server's end went.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from groundwork.program import descriptors_for_connections, use_all_descriptors
from tests.faults.load.crowd import MOST_SECONDS
from tests.faults.load.hostile import NO_SCAN, ROOT, Held, Load, lookup_while, register_topics
from tests.support.programs.processes import NamesrvProcess, Process, eventually

CONNECTIONS = 10_000
FOR_OTHERS = 100
"""Connections of the server that are not the crowd's."""


class Idle(NamedTuple):
    """A server with a crowd."""

    connections: int
    kibibytes_each: float
    load: Load
    """Lookups of another client meanwhile."""


class Drained(NamedTuple):
    """The end of a server with a crowd."""

    seconds: float
    """From SIGTERM to the end of the process."""
    exit_code: int
    told_to_go: int
    """Connections that had a GOAWAY."""
    calls: int
    """That were under way."""
    calls_ended: int
    """Of these, with a status."""


class Crowd(Process):
    """The connections, in a process of their own."""

    def __init__(self, port: int, count: int) -> None:
        super().__init__(
            [sys.executable, "-m", "tests.faults.load.crowd", str(port), str(count)], {"PYTHONPATH": str(ROOT)}
        )
        eventually(lambda: self.events("crowd_there") or self._popen.poll() is not None, within_seconds=MOST_SECONDS)
        assert self.events("crowd_there"), self.raw


def as_many_as_fit(wanted: int) -> int:
    """So many connections, or as many as this machine's limit of open files allows, which is then said."""
    use_all_descriptors()
    fit = descriptors_for_connections() - FOR_OTHERS
    if fit < wanted:
        sys.stderr.write(f"{fit} connections and not {wanted}: the limit of open files (ulimit -Hn) allows no more\n")
    return min(wanted, fit)


def idle_and_drained(count: int, seconds: float) -> tuple[Idle, Drained]:
    """Fills a server with connections, looks at it for some seconds, and ends it."""
    with NamesrvProcess(*NO_SCAN) as server:
        with server.connect() as client:
            register_topics(client)
            lookup_while(client, None, 0.5)
            before = Held.of(server)
            with Crowd(server.endpoint.port, count) as crowd:
                load = lookup_while(client, None, seconds)
                each = (Held.of(server).mebibytes - before.mebibytes) * 1024 / count
                begun = time.monotonic()
                code = server.terminate(MOST_SECONDS)
                took = time.monotonic() - begun
                over = crowd.wait_for("crowd_over")
        drained = Drained(took, code, int(over["told_to_go"]), int(over["calls"]), int(over["calls_ended"]))
        return Idle(count, each, load), drained


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args(arguments)
    idle, drained = idle_and_drained(as_many_as_fit(given.connections), given.seconds)
    sys.stdout.write(
        f"{idle.connections} connections: {idle.kibibytes_each:.1f} KiB each; beside them {len(idle.load.seconds)} "
        f"lookups, {len(idle.load.errors)} errors, p50 {idle.load.quantile(50):.1f} ms, "
        f"p99 {idle.load.quantile(99):.1f} ms\n"
        f"drained in {drained.seconds:.1f} s, exit code {drained.exit_code}: {drained.told_to_go} told to go, "
        f"{drained.calls_ended} of {drained.calls} calls ended\n"
    )


if __name__ == "__main__":
    main()
