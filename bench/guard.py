"""Fails if a call has become much dearer than it was: ``python -m bench.guard``.

Bare times mean nothing on a machine that is shared. So each engine that can run here is compared with the naive server,
in the same minutes: CPU time of the server's processes, in several rounds that take turns. What is judged is the median
of the ratios, and the bounds leave room for other machines; a call that costs twice as much does not pass. Nor does one
bad minute fail: what was too dear is measured again from the start, and has to be too dear again.

``--calibrate`` writes down what calls cost today, which is what they are held to from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from namesrv_api.v1 import route_service_pb2

from bench.figures import Sample, machine, machine_line, progress, shown, summarise, table
from bench.load import GET_TOPIC_ROUTE, REGISTER_BROKER, cpu_seconds, send
from bench.peers.servers import NAIVE, Server, own_engines, server_cores, turned
from bench.workload import Profile

LOOKUP = "lookup"
REGISTRATION = "unchanged registration"
COSTS_FILE = Path(__file__).parent / "guard.json"
"""What calls cost when they were measured last, with the machine on which that was."""
_MAY_RISE = 1.5
"""Room for other machines and unsteady ones. Twice as dear does not pass."""
_PROFILE = Profile(topics=2_000, brokers=100, width=4)
_ROUNDS = 5
_LOOKUPS = 5_000
_REGISTRATIONS = 1_000

Costs = Mapping[str, Mapping[str, float]]
"""Server CPU of a call by engine and call, divided by that of the naive server's."""


class Ratio(NamedTuple):
    """How dear a call of an engine is, beside the naive server's."""

    engine: str
    call: str
    values: tuple[float, ...]
    """One of each round."""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)


def measure(engines: Sequence[str], rounds: int) -> list[Sample]:
    """Server CPU of each call on the naive server and each engine, in milliseconds per 1,000 calls."""
    registrations = list(_PROFILE.registrations())
    lookups = [
        route_service_pb2.GetTopicRouteRequest(topic=name).SerializeToString()
        for name in _PROFILE.topic_names(_LOOKUPS)
    ]
    repeated = registrations * (_REGISTRATIONS // len(registrations))
    samples = []
    server_core, load_cores = server_cores(pin=True)
    with _running_on(load_cores), ExitStack() as stack:
        servers = [stack.enter_context(Server(name, server_core)) for name in (NAIVE, *engines)]
        for server in servers:
            send(server.target, REGISTER_BROKER, registrations)
            send(server.target, GET_TOPIC_ROUTE, lookups[: len(lookups) // 5])
        for number in range(1, rounds + 1):
            progress(f"guard: round {number} of {rounds}")
            for call, path, requests in (
                (LOOKUP, GET_TOPIC_ROUTE, lookups),
                (REGISTRATION, REGISTER_BROKER, repeated),
            ):
                for server in turned(servers, number):
                    before = cpu_seconds(server.pids())
                    send(server.target, path, requests)
                    cost = (cpu_seconds(server.pids()) - before) * 1e6 / len(requests)
                    samples.append(Sample(server.name, call, "ms CPU per 1,000", cost))
        for server in servers:
            server.terminate()
    return samples


def ratios_of(samples: Iterable[Sample]) -> list[Ratio]:
    """Each engine's cost divided by the naive server's of the same round."""
    values = {(figure.workload, figure.name): figure.values for figure in summarise(samples)}
    return [
        Ratio(engine, call, tuple(own / peer for own, peer in zip(costs, values[NAIVE, call], strict=True)))
        for (engine, call), costs in sorted(values.items())
        if engine != NAIVE
    ]


def known_costs() -> Costs:
    """What calls cost when they were measured last."""
    costs: Costs = json.loads(COSTS_FILE.read_text(encoding="utf-8"))["costs"]
    return costs


def bound_of(costs: Costs, ratio: Ratio) -> float:
    """What the median of a ratio may be."""
    return costs[ratio.engine][ratio.call] * _MAY_RISE


def judge(costs: Costs, ratios: Iterable[Ratio]) -> list[str]:
    """What is dearer than its bound allows, a sentence each."""
    return [
        f"one {ratio.call} on {ratio.engine} costs {shown(ratio.median)} times the naive server's, and may cost"
        f" {shown(bound_of(costs, ratio))}: rounds {', '.join(map(shown, ratio.values))}"
        for ratio in ratios
        if ratio.median > bound_of(costs, ratio)
    ]


def guard(engines: Sequence[str], rounds: int) -> int:
    """Measures and judges; what is too dear is measured once more. Returns the exit code."""
    costs = known_costs()
    findings: list[str] = []
    for _ in range(2):
        ratios = _measured(engines, rounds)
        for ratio in ratios:
            measured, bound = shown(ratio.median), shown(bound_of(costs, ratio))
            print(f"{ratio.engine}, {ratio.call}: {measured} times the naive server's, may be {bound}", flush=True)
        findings = judge(costs, ratios)
        for finding in findings:
            progress(f"guard: {finding}")
        if not findings:
            return 0
        engines = list(dict.fromkeys(ratio.engine for ratio in ratios if judge(costs, [ratio])))
    return 1


def calibrate(rounds: int) -> None:
    """Measures, and writes down what calls cost: engines that are not installed here keep what they had."""
    costs = {engine: dict(calls) for engine, calls in known_costs().items()}
    for ratio in _measured(own_engines(), rounds):
        costs.setdefault(ratio.engine, {})[ratio.call] = round(ratio.median, 3)
        print(f"{ratio.engine}, {ratio.call}: {shown(ratio.median)} times the naive server's")
    COSTS_FILE.write_text(json.dumps({"machine": machine(), "rounds": rounds, "costs": costs}, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Guards or calibrates; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Fails if a call has become dearer.")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="default: %(default)s")
    parser.add_argument("--engine", choices=own_engines(), help="default: all that are installed")
    parser.add_argument("--calibrate", action="store_true", help=f"write what all calls cost to {COSTS_FILE.name}")
    options = parser.parse_args(arguments)
    if options.calibrate:
        calibrate(options.rounds)
        return 0
    return guard([options.engine] if options.engine else own_engines(), options.rounds)


def _measured(engines: Sequence[str], rounds: int) -> list[Ratio]:
    samples = measure(engines, rounds)
    print(machine_line())
    print(table(summarise(sorted(samples, key=lambda sample: sample.workload))))
    return ratios_of(samples)


@contextmanager
def _running_on(cores: str | None) -> Iterator[None]:
    """Keeps this process, which is the load, off the servers' core; None: it may run anywhere."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    # Otherwise the servers would outlive a program that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    sys.exit(main())
