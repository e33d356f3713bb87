"""A name server is killed and started again under many watchers and brokers: ``python -m tests.faults.load.storm``.

Prints how long it took until all of them were back, whether any watcher was told that a route is gone, and how lookups
fared meanwhile.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
from namesrv_api.v1 import route_service_pb2

from tests.faults.fleet.fleet import ROOT
from tests.faults.load.storm_load import own_topic
from tests.faults.resources import sample
from tests.support.programs.processes import NamesrvProcess, Process, eventually

LONGEST_SECONDS = 600.0
SNAPSHOT = ("--snapshot-interval-millis", "1000", "--log-level", "debug")
BROKER_PROCESSES = 2
WATCHER_PROCESSES = 2
# Everybody is on this machine, and what they take from the name server must not count as its death or theirs.
PATIENT = ("--keepalive-time-millis", "3600000", "--warm-up-millis", "45000")


@dataclass(frozen=True)
class Outcome:
    """What a storm did. Times are in seconds since the new process was started."""

    listening: float
    brokers_back: float
    watchers_back: float
    wrong_empties: int
    """Routes that watchers were told are gone."""
    not_found: int
    """Lookups that said that there is no such topic."""
    slowest_lookup: float
    memory_mib: float


class Load(Process):
    """A process full of brokers or watchers."""

    def __init__(self, *arguments: str) -> None:
        super().__init__([sys.executable, "-m", "tests.faults.load.storm_load", *arguments], {"PYTHONPATH": str(ROOT)})

    def all_there(self, count: int) -> float:
        """When all of them were there for the so-manieth time."""

        def were_there() -> bool:
            assert self._popen.poll() is None, f"ended:\n{self.raw}"
            return len(self.events("all_there")) >= count

        eventually(were_there, within_seconds=LONGEST_SECONDS)
        return float(self.events("all_there")[count - 1]["monotonic"])

    def wrong_empties(self) -> int:
        """How often a route was said to be gone, by the last time that all were there."""
        return int(self.events("all_there")[-1].get("wrong_empties", 0))


def _shares(count: int, parts: int) -> list[range]:
    return [range(count * part // parts, count * (part + 1) // parts) for part in range(parts)]


def _start_all(
    stack: ExitStack, endpoint: str, watchers: int, brokers: int, topics: int
) -> tuple[list[Load], list[Load]]:
    broker_loads = [
        stack.enter_context(Load("brokers", endpoint, str(share.start), str(len(share)), str(topics)))
        for share in _shares(brokers, BROKER_PROCESSES)
    ]
    for load in broker_loads:
        load.all_there(1)
    watcher_loads = [
        stack.enter_context(Load("watchers", endpoint, str(brokers), str(len(share))))
        for share in _shares(watchers, WATCHER_PROCESSES)
    ]
    for load in watcher_loads:
        load.all_there(1)
    return broker_loads, watcher_loads


def storm(watchers: int, brokers: int, topics: int, *, data_dir: Path | None = None) -> Outcome:
    """Lets one happen, cold or, with a data directory, warm."""
    flags = (*PATIENT, *(() if data_dir is None else ("--data-dir", str(data_dir), *SNAPSHOT)))
    with ExitStack() as stack:
        server = stack.enter_context(NamesrvProcess(*flags))
        broker_loads, watcher_loads = _start_all(stack, str(server.endpoint), watchers, brokers, topics)
        if data_dir is not None:
            _wait_for_snapshot(server)
        server.kill()
        began = time.monotonic()
        again = stack.enter_context(NamesrvProcess(*flags, port=server.endpoint.port))
        listening = time.monotonic() - began
        loads = [*broker_loads, *watcher_loads]
        not_found, slowest = _lookup_until_back(again, loads, brokers)
        back = {load: load.all_there(2) - began for load in loads}
        return Outcome(
            listening,
            max(back[load] for load in broker_loads),
            max(back[load] for load in watcher_loads),
            sum(load.wrong_empties() for load in watcher_loads),
            not_found,
            slowest,
            sample(again.pid)["rss_kib"] / 1024,
        )


def _wait_for_snapshot(server: NamesrvProcess) -> None:
    """Until the file holds what the tables hold. None is written before the name server is warm."""
    eventually(lambda: server.events("namesrv_warm"), within_seconds=LONGEST_SECONDS)
    with server.connect() as client:
        revision = client.routes.GetNamesrvStatus(
            route_service_pb2.GetNamesrvStatusRequest(), timeout=20
        ).header.revision
    eventually(
        lambda: any(line["revision"] >= revision for line in server.events("snapshot_written")),
        within_seconds=LONGEST_SECONDS,
    )


def _lookup_until_back(server: NamesrvProcess, loads: Sequence[Load], brokers: int) -> tuple[int, float]:
    """Looks topics of single brokers up until all are back: how often there was none, and the slowest answer."""
    not_found, slowest, number = 0, 0.0, 0
    deadline = time.monotonic() + LONGEST_SECONDS
    with server.connect() as client:
        while any(len(load.events("all_there")) < 2 for load in loads) and time.monotonic() < deadline:
            number += 1
            began = time.monotonic()
            try:
                not_found += client.route(own_topic(number % brokers)) is None
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:  # it is warming up
                    raise
            slowest = max(slowest, time.monotonic() - began)
    return not_found, slowest


def main() -> None:
    """Runs one and prints what it did."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.load.storm", description=__doc__)
    parser.add_argument("--watchers", type=int, default=1_000)
    parser.add_argument("--brokers", type=int, default=300)
    parser.add_argument("--topics", type=int, default=10_000, help="of each broker")
    parser.add_argument("--warm", action="store_true", help="with a data directory, so that there is a snapshot file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) if options.warm else None
        outcome = storm(options.watchers, options.brokers, options.topics, data_dir=data_dir)
    for name, value in vars(outcome).items():
        sys.stdout.write(f"{name:18}{value:10.2f}\n")


if __name__ == "__main__":
    main()
