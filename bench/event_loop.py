"""Time that a real name server's event loop is held up while tables change: ``python -m bench.event_loop``.

A name server runs in a process of its own with a probe in its event loop. This process registers brokers in phases
and meanwhile looks topics up at a fixed rate.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import grpc
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub

from bench.figures import Figure, Sample, machine_line, progress, shown, summarise, table, write_json
from bench.load import CLIENT_OPTIONS, REGISTER_BROKER
from bench.peers.servers import NATIVE
from bench.probes.loop import LoopFigures
from bench.probes.namesrv import PROBE_SIGNAL
from bench.steady_lookups import CALLS_PER_SECOND, SteadyLookups
from bench.workload import Profile, over_channel, registration
from tests.support.programs.processes import OpenedChannel, Process, eventually

BAR_MILLIS = 10.0
"""What the design allows the event loop to be held up for, garbage collections included."""

_DELAY = "event loop, longest delay"
_CALL_SECONDS = 60.0
_GONE_SECONDS = 120.0
"""A broker whose channel ended leaves within this even if the name server puts the end down to a stall of its own."""


class Scale(NamedTuple):
    """How much of everything. The defaults are what reports are about; a trial uses tiny ones."""

    profile: Profile = Profile(100_000, 1_000, 4)
    """What is there before."""
    topics: int = 100_000
    """Topics of the one large broker: those that are there already, so all their routes change."""
    many_brokers: int = 32
    many_topics: int = 10_000
    """Topics of each of the many brokers, the same ones."""
    many_seconds: float = 5.0
    """How long the many brokers register."""
    quiet_seconds: float = 0.5
    """What belongs to a phase after its last answer: the work that a change leaves behind."""


class Requests:
    """What is sent, encoded before anything is measured: here it would take the server's processor."""

    def __init__(self, scale: Scale) -> None:
        profile, topics, many_topics = scale.profile, range(scale.topics), range(scale.many_topics)
        self.fleet = list(profile.registrations())
        self.large = [
            registration(profile.brokers, topics, counter, changed) for counter, changed in ((1, range(0)), (2, topics))
        ]
        """One broker's registration, then the same with all topics changed."""
        self.many = [
            [
                registration(broker, many_topics, counter, changed)
                for counter, changed in ((1, range(0)), (2, many_topics))
            ]
            for broker in range(profile.brokers + 1, profile.brokers + 1 + scale.many_brokers)
        ]
        """Of each of the many brokers two registrations that take turns: every topic of one differs from the other."""


class ProbedNamesrv(Process):
    """A name server on a free port of loopback with a probe in its event loop."""

    def __init__(self, *arguments: str) -> None:
        options = ("--listen", "127.0.0.1:0", "--log-format", "json", "--warm-up-millis", "0", *arguments)
        super().__init__([sys.executable, "-m", "bench.probes.namesrv", *options])
        try:
            self.target = str(self.wait_for("namesrv_started")["listen"])
        except BaseException:
            self.__exit__()
            raise

    def take(self) -> LoopFigures:
        """What the probe has seen since this was called last."""
        before = len(self.events("loop_probed"))
        self.signal(PROBE_SIGNAL)
        line = eventually(lambda: self.events("loop_probed")[before:])[0]
        return LoopFigures(*(line[name] for name in LoopFigures._fields))


class Round:
    """One name server in all phases, each on the tables that those before it left."""

    def __init__(self, scale: Scale, namesrv: ProbedNamesrv, lookups: SteadyLookups) -> None:
        self._scale = scale
        self._namesrv = namesrv
        self._lookups = lookups
        self._samples: list[Sample] = []

    def run(self, requests: Requests, connection: grpc.Channel) -> list[Sample]:
        """Runs the phases."""
        scale, stub = self._scale, RegistrationServiceStub(connection)
        with self._phase(f"loading {scale.profile.name}"):
            for data in requests.fleet:
                _register(connection, data)
        with self._phase("lookups only"):
            time.sleep(scale.quiet_seconds)
        opened = OpenedChannel(stub.OpenChannel(pb.OpenChannelRequest(holder="bench")))
        for data, phase in zip(requests.large, ("first", "again, all changed"), strict=True):
            message = over_channel(data, opened.id)
            with self._phase(f"one broker registers {scale.topics:,} topics, {phase}"):
                _register(connection, message)
        with self._phase("its channel ends, and it leaves all routes"):
            opened.close()
            _wait_until_gone(stub, requests.large[-1])
        with self._phase(f"{scale.many_brokers} brokers x {scale.many_topics:,} topics register all the time"):
            rate = _register_all_the_time(connection, requests.many, scale.many_seconds)
            self._note("registrations per second", "1/s", rate)
        return self._samples

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Measures what the block does and what it leaves behind."""
        self._workload = f"{NATIVE}: {name}"
        self._lookups.take()
        self._namesrv.take()
        began = time.perf_counter()
        yield
        self._note("until the last answer", "s", time.perf_counter() - began)
        time.sleep(self._scale.quiet_seconds)
        loop, latencies = self._namesrv.take(), eventually(self._lookups.take)
        self._note(_DELAY, "ms", loop.longest_delay_millis)
        self._note("event loop, p99 of its delay", "ms", loop.p99_delay_millis)
        self._note("event loop, longest time on the processor", "ms", loop.longest_busy_millis)
        self._note("longest garbage collection", "ms", loop.longest_collection_millis)
        self._note("lookup latency, median", "ms", latencies[len(latencies) // 2] * 1000)
        self._note("lookup latency, p99", "ms", latencies[len(latencies) * 99 // 100] * 1000)

    def _note(self, name: str, unit: str, value: float) -> None:
        self._samples.append(Sample(self._workload, name, unit, value))


def measure(scale: Scale, rounds: int) -> list[Sample]:
    """Runs all phases on a fresh name server in each round."""
    requests = Requests(scale)
    samples: list[Sample] = []
    for number in range(1, rounds + 1):
        progress(f"event_loop: round {number} of {rounds}")
        with (
            ProbedNamesrv() as namesrv,
            grpc.insecure_channel(namesrv.target, CLIENT_OPTIONS) as connection,
            SteadyLookups(namesrv.target, scale.profile) as lookups,
        ):
            samples += Round(scale, namesrv, lookups).run(requests, connection)
    return samples


def verdicts(figures: Sequence[Figure]) -> str:
    """The longest delay of each phase beside the bar, and in how many rounds it was kept."""
    delays = [figure for figure in figures if figure.name == _DELAY]
    width = max(len(_DELAY), *(len(figure.workload) for figure in delays))
    lines = [f"{_DELAY:{width}}  {'median':>7}  {'bar':>5}  kept"]
    for figure in delays:
        kept = sum(value < BAR_MILLIS for value in figure.values)
        rounds = f"in {kept} of {len(figure.values)} rounds"
        lines.append(f"{figure.workload:{width}}  {shown(figure.median):>7}  {BAR_MILLIS:>2.0f} ms  {rounds}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, writes the JSON file."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.event_loop", description="Measures how long the event loop is held up."
    )
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--topics", type=int, help="for a trial: tiny tables with so many topics")
    options = parser.parse_args(arguments)
    scale = tiny(options.topics) if options.topics else Scale()
    figures = summarise(measure(scale, options.rounds))
    print(machine_line())
    print(f"Event loop under changes: {options.rounds} rounds, {CALLS_PER_SECOND} lookups per second all the time.")
    print(table(figures))
    print(verdicts(figures))
    if options.json:
        write_json(options.json, figures, rounds=options.rounds, bar_millis=BAR_MILLIS)


def tiny(topics: int) -> Scale:
    """Everything with so many topics and a few brokers: shows that it runs, and no more."""
    return Scale(Profile(topics, 10, 2), topics, 2, topics, many_seconds=0.1, quiet_seconds=0.1)


def _register(connection: grpc.Channel, data: bytes) -> None:
    register = connection.unary_unary(REGISTER_BROKER, None, pb.RegisterBrokerResponse.FromString)
    answer = register(data, timeout=_CALL_SECONDS)
    assert answer.changed, f"nothing was changed, so nothing was measured: {answer}"


def _register_all_the_time(connection: grpc.Channel, brokers: Sequence[Sequence[bytes]], seconds: float) -> float:
    """Each broker registers again as soon as it is answered; returns how many registrations that were per second."""
    began = time.monotonic()

    def register(requests: Sequence[bytes]) -> int:
        for count, data in enumerate(itertools.cycle(requests)):
            if time.monotonic() > began + seconds:
                return count
            _register(connection, data)
        raise AssertionError("there is nothing to register")

    with ThreadPoolExecutor(len(brokers)) as threads:
        return sum(threads.map(register, brokers)) / (time.monotonic() - began)


def _wait_until_gone(stub: RegistrationServiceStub, last: bytes) -> None:
    """Waits until a broker is in no tables any more.

    Args:
        stub: The name server.
        last: What the broker registered last.
    """
    registered = pb.RegisterBrokerRequest.FromString(last)
    query = pb.QueryDataVersionRequest(broker=registered.broker, data_version=registered.data_version)
    eventually(lambda: stub.QueryDataVersion(query, timeout=_CALL_SECONDS).changed, within_seconds=_GONE_SECONDS)


if __name__ == "__main__":
    main()
