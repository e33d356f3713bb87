"""From a registration to the callbacks of many watchers, through a real server: ``python -m bench.watchers``."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from bench.event_loop import ProbedNamesrv
from bench.figures import Sample, machine_line, progress, summarise, table, write_json
from bench.load import CLIENT_OPTIONS, open_many_files
from bench.peers.servers import own_engines
from bench.workload import registration, topic_name
from support.processes import eventually

_CALL_SECONDS = 30.0
_ARRIVE_SECONDS = 120.0
_ARRIVALS = 20_000
"""Of so many, the numbers do not change any more: 10,000 watchers are told of a change in seconds, so of fewer."""
_FEWEST_CHANGES = 5


class Scale(NamedTuple):
    """How much of everything. The defaults are what reports are about; the test uses tiny ones."""

    watchers: tuple[int, ...] = (100, 1_000, 10_000)
    changes: int = 20
    """Changes of the watched topic, one after the other; fewer where very many are told of each."""
    topics: int = 10_000
    """Topics of the broker that changes all of them at once."""
    quiet_seconds: float = 0.3
    """Pause before each change."""

    def changes_for(self, watchers: int) -> int:
        """How often so many watchers are told of something in each phase."""
        return min(self.changes, max(_FEWEST_CHANGES, _ARRIVALS // watchers))


class WatchedNamesrv(ProbedNamesrv):
    """A name server whose memory is looked at."""

    def resident_bytes(self) -> int:
        """Its resident memory."""
        for line in Path(f"/proc/{self._popen.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("a process has resident memory")


class WatchLoad:
    """Watchers in a process of their own."""

    def __init__(self, target: str, watchers: int) -> None:
        self.watchers = watchers
        arguments = ("--target", target, "--topic", topic_name(0), "--watchers", str(watchers))
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "bench.watch_load", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready", "all watchers have their first message"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.kill()
        self._popen.communicate(timeout=_CALL_SECONDS)

    def arrivals(self, revision: int) -> list[float]:
        """When each watcher had the change of a revision, in ascending order; waits for all of them."""
        seconds: list[float] = []

        def take() -> int:
            assert self._popen.stdin is not None
            self._popen.stdin.write("\n")
            self._popen.stdin.flush()
            for came_with, times in json.loads(self._line()).items():
                assert int(came_with) == revision, "one change is told at a time"
                seconds.extend(times)
            return len(seconds)

        time.sleep(self.watchers / 5_000)  # asking takes time from what is measured
        eventually(take, lambda count: count >= self.watchers, _ARRIVE_SECONDS)
        assert len(seconds) == self.watchers, "each watcher is told once"
        return sorted(seconds)

    def _line(self) -> str:
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()


class Round:
    """One name server with so many watchers."""

    def __init__(self, engine: str, scale: Scale, watchers: int) -> None:
        self._workload = f"{engine}: {watchers:,} watchers of one topic"
        self._scale = scale
        self._watchers = watchers
        self._counters = itertools.count(2)
        self._samples: list[Sample] = []

    def run(self, namesrv: WatchedNamesrv, connection: grpc.Channel) -> list[Sample]:
        """Runs the phases."""
        stub = RegistrationServiceStub(connection)
        stub.RegisterBroker(_request(self._scale.topics, 1), timeout=_CALL_SECONDS)
        before = namesrv.resident_bytes()
        with WatchLoad(namesrv.target, self._watchers) as load:
            memory = (namesrv.resident_bytes() - before) / self._watchers / 1024
            self._note("resident memory of the server, each", "KiB", memory)
            self._changes("one topic changes", namesrv, stub, load, topics=1)
            self._changes(f"{self._scale.topics:,} topics change at once", namesrv, stub, load)
            with _stalled(namesrv) as stalled:
                self._changes("the same beside a watch that does not read", namesrv, stub, load)
                assert stalled.is_active(), "it was not cut while it was measured"
        return self._samples

    def _changes(
        self,
        what: str,
        namesrv: WatchedNamesrv,
        stub: RegistrationServiceStub,
        load: WatchLoad,
        topics: int | None = None,
    ) -> None:
        """Has topics changed again and again, and notes when watchers of one of them were told."""
        latencies: list[float] = []
        last: list[float] = []
        namesrv.take()
        for _ in range(self._scale.changes_for(self._watchers)):
            request = _request(self._scale.topics, next(self._counters), topics)
            time.sleep(self._scale.quiet_seconds)
            began = time.monotonic()
            revision = stub.RegisterBroker(request, timeout=_CALL_SECONDS).header.revision
            told = [seconds - began for seconds in load.arrivals(revision)]
            latencies += told
            last.append(told[-1])
        latencies.sort()
        self._note(f"{what}: told, median", "ms", latencies[len(latencies) // 2] * 1000)
        self._note(f"{what}: told, p99", "ms", latencies[len(latencies) * 99 // 100] * 1000)
        self._note(f"{what}: last of all told, worst change", "ms", max(last) * 1000)
        loop = namesrv.take()
        self._note(f"{what}: event loop, longest delay", "ms", loop.longest_delay_millis)
        self._note(f"{what}: event loop, longest time on the processor", "ms", loop.longest_busy_millis)

    def _note(self, name: str, unit: str, value: float) -> None:
        self._samples.append(Sample(self._workload, name, unit, value))


def measure(scale: Scale, engines: Sequence[str], rounds: int) -> list[Sample]:
    """Runs all numbers of watchers on a fresh name server each, the engines in turn."""
    open_many_files()
    samples: list[Sample] = []
    for number, watchers, engine in itertools.product(range(1, rounds + 1), scale.watchers, engines):
        progress(f"watchers: round {number} of {rounds}, {engine}, {watchers:,} watchers")
        # A stalled reader is to stay: it is cut after so long that it does not matter here.
        with ExitStack() as stack:
            namesrv = stack.enter_context(WatchedNamesrv(engine, "--slow-reader-timeout-millis", "600000"))
            connection = stack.enter_context(grpc.insecure_channel(namesrv.target, CLIENT_OPTIONS))
            samples += Round(engine, scale, watchers).run(namesrv, connection)
    return sorted(samples, key=lambda sample: engines.index(sample.workload.partition(":")[0]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, writes the JSON file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.watchers", description="Measures how soon watchers are told of a change."
    )
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--engine", choices=own_engines(), help="default: all that are installed, in turn")
    parser.add_argument("--watchers", type=int, help="only so many; default: 100, 1,000 and 10,000")
    parser.add_argument("--topics", type=int, help="for a trial: tiny tables with so many topics, and few watchers")
    options = parser.parse_args(arguments)
    scale = tiny(options.topics) if options.topics else Scale()
    if options.watchers:
        scale = scale._replace(watchers=(options.watchers,))
    engines = [options.engine] if options.engine else own_engines()
    figures = summarise(measure(scale, engines, options.rounds))
    print(machine_line())
    changes = f"{_FEWEST_CHANGES} to {scale.changes} changes"
    print(f"Watchers: {options.rounds} rounds of {changes} each, watchers in one process of their own.")
    print(table(figures))
    if options.json:
        write_json(options.json, figures, rounds=options.rounds)


def tiny(topics: int) -> Scale:
    """Everything with so many topics and a few watchers: shows that it runs, and no more."""
    return Scale((5,), 2, topics, quiet_seconds=0.0)


def _request(topics: int, counter: int, changed: int | None = None) -> registration_service_pb2.RegisterBrokerRequest:
    """A broker's whole table, of which so many topics (all if not said) have other numbers than before."""
    data = registration(0, range(topics), counter=counter)
    request = registration_service_pb2.RegisterBrokerRequest.FromString(data)
    for config in request.topic_configs[: topics if changed is None else changed]:
        config.read_queue_nums = config.write_queue_nums = 1 + counter % 1_000
    return request


@contextmanager
def _stalled(namesrv: WatchedNamesrv) -> Iterator[Any]:
    """A watch of everything that reads nothing, with full buffers on the way to it."""
    with grpc.insecure_channel(namesrv.target, CLIENT_OPTIONS) as own_connection:
        call: Any = RouteServiceStub(own_connection).WatchTopicRoutes(pb.WatchTopicRoutesRequest(topic_prefixes=[""]))
        time.sleep(1.0)
        yield call
        call.cancel()


if __name__ == "__main__":
    main()
