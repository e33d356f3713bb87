"""From a registration to the callbacks of many watchers, through a real server: ``python -m bench.watchers``."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import grpc
from namesrv_api.v1 import registration_service_pb2
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from bench.awake import processors_awake
from bench.event_loop import ProbedNamesrv
from bench.figures import Sample, machine_line, progress, summarise, table, write_json
from bench.load import CLIENT_OPTIONS, cpu_seconds, open_many_files
from bench.peers.calls import Grpc
from bench.peers.generator import Group, Plan, watching
from bench.peers.recipes import Missing, RecipeFailed
from bench.peers.servers import OWN_SERVERS, TLS
from bench.workload import registration
from tests.support.programs.processes import eventually
from tests.support.secured.certificates import Authority

_CALL_SECONDS = 30.0
_ARRIVE_SECONDS = 120.0
_ARRIVALS = 20_000
"""Of so many, the numbers do not change any more: 10,000 watchers are told of a change in seconds, so of fewer."""
_FEWEST_CHANGES = 5
_STREAMS_PER_CONNECTION = 100
"""Half of what a name server permits."""


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

    def __init__(self, server: str, folder: Path) -> None:
        """Starts an engine; a name that ends with ``+tls`` has it with TLS."""
        self.tls_ca: Path | None = None
        # A stalled reader is to stay: it is cut after so long that it does not matter here.
        options = ["--slow-reader-timeout-millis", "600000"]
        if server.endswith(TLS):
            authority = Authority(folder)
            files = authority.sign("namesrv", dns=["localhost"], ips=["127.0.0.1"])
            self.tls_ca = authority.path
            options += ["--tls-cert", str(files.certificate), "--tls-key", str(files.key)]
        super().__init__(server.removesuffix(TLS), *options)

    def connect(self) -> grpc.Channel:
        """A connection to it."""
        if self.tls_ca is None:
            return grpc.insecure_channel(self.target, CLIENT_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.tls_ca.read_bytes())
        return grpc.secure_channel(self.target, credentials, CLIENT_OPTIONS)

    def cpu_seconds(self) -> float:
        """Its CPU time so far."""
        return cpu_seconds([self._popen.pid])

    def resident_bytes(self) -> int:
        """Its resident memory."""
        for line in Path(f"/proc/{self._popen.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("a process has resident memory")


class WatchLoad:
    """Watchers in a process of their own, written in Rust: one in Python would be what is measured."""

    def __init__(self, namesrv: WatchedNamesrv, watchers: int, folder: Path) -> None:
        self.watchers = watchers
        connections = -(-watchers // _STREAMS_PER_CONNECTION)
        self._streams = watchers // connections
        group = Group(f"watches-{watchers}", [Grpc().watch(0)], connections, in_flight=self._streams)
        plan = Plan(namesrv.target, "grpc", (), None, [group], seconds=0.0, tls_ca=namesrv.tls_ca)
        self._popen = subprocess.Popen(watching(plan, folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
            for message, times in json.loads(self._line()).items():
                came = pb.WatchTopicRoutesResponse.FromString(bytes.fromhex(message))
                if came.changes:  # others are bookmarks
                    assert came.header.revision == revision, "one change is told at a time"
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

    def __init__(self, server: str, scale: Scale, watchers: int, folder: Path) -> None:
        self._workload = f"{server}: {watchers:,} watchers of one topic"
        self._folder = folder
        self._scale = scale
        self._watchers = watchers
        self._counters = itertools.count(2)
        self._samples: list[Sample] = []

    def run(self, namesrv: WatchedNamesrv, connection: grpc.Channel) -> list[Sample]:
        """Runs the phases."""
        stub = RegistrationServiceStub(connection)
        stub.RegisterBroker(_request(self._scale.topics, 1), timeout=_CALL_SECONDS)
        before = namesrv.resident_bytes()
        with WatchLoad(namesrv, self._watchers, self._folder) as load:
            memory = (namesrv.resident_bytes() - before) / self._watchers / 1024
            self._note("resident memory of the server, each", "KiB", memory)
            self._changes("one topic changes", namesrv, stub, load, _increment)
            self._changes(f"{self._scale.topics:,} topics change at once", namesrv, stub, load, self._all)
            with _stalled(namesrv) as stalled:
                self._changes("the same beside a watch that does not read", namesrv, stub, load, self._all)
                assert stalled.is_active(), "it was not cut while it was measured"
        return self._samples

    def _changes(
        self,
        what: str,
        namesrv: WatchedNamesrv,
        stub: RegistrationServiceStub,
        load: WatchLoad,
        request_of: Callable[[int], registration_service_pb2.RegisterBrokerRequest],
    ) -> None:
        """Has topics changed again and again, and notes when watchers of one of them were told."""
        latencies: list[float] = []
        last: list[float] = []
        namesrv.take()
        cpu = 0.0
        for _ in range(self._scale.changes_for(self._watchers)):
            request = request_of(next(self._counters))
            time.sleep(self._scale.quiet_seconds)
            before, began = namesrv.cpu_seconds(), time.monotonic()
            revision = stub.RegisterBroker(request, timeout=_CALL_SECONDS).header.revision
            told = [seconds - began for seconds in load.arrivals(revision)]
            cpu += namesrv.cpu_seconds() - before
            latencies += told
            last.append(told[-1])
        latencies.sort()
        self._note(f"{what}: told, median", "ms", latencies[len(latencies) // 2] * 1000)
        self._note(f"{what}: told, p99", "ms", latencies[len(latencies) * 99 // 100] * 1000)
        self._note(f"{what}: server CPU, each watcher", "µs", cpu * 1e6 / len(latencies))
        self._note(f"{what}: last of all told, worst change", "ms", max(last) * 1000)
        loop = namesrv.take()
        self._note(f"{what}: event loop, longest delay", "ms", loop.longest_delay_millis)
        self._note(f"{what}: event loop, longest time on the processor", "ms", loop.longest_busy_millis)

    def _all(self, counter: int) -> registration_service_pb2.RegisterBrokerRequest:
        return _request(self._scale.topics, counter)

    def _note(self, name: str, unit: str, value: float) -> None:
        self._samples.append(Sample(self._workload, name, unit, value))


def measure(scale: Scale, servers: Sequence[str], rounds: int) -> list[Sample]:
    """Runs all numbers of watchers on a fresh name server each, the servers in turn."""
    open_many_files()
    samples: list[Sample] = []
    for number, watchers, server in itertools.product(range(1, rounds + 1), scale.watchers, servers):
        progress(f"watchers: round {number} of {rounds}, {server}, {watchers:,} watchers")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            namesrv = stack.enter_context(WatchedNamesrv(server, folder))
            connection = stack.enter_context(namesrv.connect())
            samples += Round(server, scale, watchers, folder).run(namesrv, connection)
    return sorted(samples, key=lambda sample: servers.index(sample.workload.partition(":")[0]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, writes the JSON file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.watchers", description="Measures how soon watchers are told of a change."
    )
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--server", action="append", choices=OWN_SERVERS, help="may be given again; default: all")
    parser.add_argument(
        "--watchers", type=int, action="append", help="may be given again; default: 100, 1,000 and 10,000"
    )
    parser.add_argument("--topics", type=int, help="for a trial: tiny tables with so many topics, and few watchers")
    options = parser.parse_args(arguments)
    scale = tiny(options.topics) if options.topics else Scale()
    if options.watchers:
        scale = scale._replace(watchers=tuple(options.watchers))
    try:
        with processors_awake():
            figures = summarise(measure(scale, options.server or OWN_SERVERS, options.rounds))
    except (Missing, RecipeFailed) as error:
        raise SystemExit(f"the watchers cannot run: {error}") from None
    print(machine_line())
    changes = f"{_FEWEST_CHANGES} to {scale.changes} changes"
    print(f"Watchers: {options.rounds} rounds of {changes} each, watchers in one process of their own.")
    print(table(figures))
    if options.json:
        write_json(options.json, figures, rounds=options.rounds)


def tiny(topics: int) -> Scale:
    """Everything with so many topics and a few watchers: shows that it runs, and no more."""
    return Scale((5,), 2, topics, quiet_seconds=0.0)


def _request(topics: int, counter: int) -> registration_service_pb2.RegisterBrokerRequest:
    """A broker's table of so many topics, all with other queue counts than those of the counter before."""
    request = registration_service_pb2.RegisterBrokerRequest.FromString(registration(0, range(topics), counter))
    for config in request.topic_configs:
        config.read_queue_nums = config.write_queue_nums = 1 + counter % 1_000
    return request


def _increment(counter: int) -> registration_service_pb2.RegisterBrokerRequest:
    """One topic with other queue counts, as agents tell of a change."""
    request = _request(1, counter)
    request.base_version.CopyFrom(request.data_version)
    request.base_version.counter -= 1
    return request


@contextmanager
def _stalled(namesrv: WatchedNamesrv) -> Iterator[Any]:
    """A watch of everything that reads nothing, with full buffers on the way to it."""
    with namesrv.connect() as own_connection:
        call: Any = RouteServiceStub(own_connection).WatchTopicRoutes(
            iter([pb.WatchTopicRoutesRequest(topic_prefixes=[""])])
        )
        time.sleep(1.0)
        yield call
        call.cancel()


if __name__ == "__main__":
    main()
