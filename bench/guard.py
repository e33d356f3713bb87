"""Fails if a call has become much dearer than it was: ``python -m bench.guard``.

Bare times mean nothing on a machine that is shared. So registrations are compared with those of the naive server, in
the same minutes. Lookups are compared with a server of the engine's own kind, which looks nothing up, where cargo can
build that one: what the engine answers by itself (a hit) and through Python (a miss). Beside the naive server they
would be held to how fast a machine runs Python, which differs by half between two kinds of processors.

Compared is CPU time of the server's processes, in several rounds that take turns. Each server is judged by its cheapest
round: neighbours on a shared machine make a call dearer and never cheaper. The bounds leave room for other machines; a
call that costs twice as much does so in every round, and does not pass. Nor does one bad minute fail: what was too dear
is measured again from the start, and has to be too dear again.

``--calibrate`` writes down what calls cost today, which is what they are held to from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from namesrv_api.v1 import route_service_pb2

from bench.figures import Sample, machine, machine_line, progress, shown, summarise, table
from bench.load import GET_TOPIC_ROUTE, REGISTER_BROKER, cpu_seconds, send
from bench.peers import generator
from bench.peers.recipes import Missing, RecipeFailed
from bench.peers.servers import NAIVE, NATIVE, NULL, Server, server_cores, turned
from bench.workload import Profile
from namesrv.engines.factory import native_problem

REGISTRATION = "unchanged registration"
HIT = "hit"
MISS = "miss"
_PEERS = {REGISTRATION: NAIVE, HIT: NULL, MISS: NULL}
"""What each call is compared with."""
COSTS_FILE = Path(__file__).parent / "guard.json"
"""What calls cost when they were measured last, with the machine on which that was."""
_MAY_RISE = 1.5
"""Room for other machines and unsteady ones. Twice as dear does not pass."""
_PROFILE = Profile(topics=2_000, brokers=100, width=4)
_ROUNDS = 5
_LOOKUPS = 5_000
_REGISTRATIONS = 1_000

Costs = Mapping[str, float]
"""Server CPU of each call, divided by that of the server that it is compared with."""


class Ratio(NamedTuple):
    """How dear a call is, beside another server's."""

    call: str
    own: tuple[float, ...]
    """What the call cost, one figure of each round."""
    peers: tuple[float, ...]
    """What the other server's cost, in the same rounds."""

    @property
    def value(self) -> float:
        """The cheapest round beside the other server's."""
        return min(self.own) / min(self.peers)


def measure(rounds: int) -> list[Sample]:
    """Server CPU of each call and what it is compared with, in milliseconds per 1,000 calls."""
    samples = []
    server_core, load_cores = server_cores(pin=True)
    with _running_on(load_cores), ExitStack() as stack:
        servers = [stack.enter_context(Server(name, server_core)) for name in (NAIVE, NATIVE)]
        apart = servers[1:]
        if (null := _null_server(server_core)) is not None:
            apart.append(stack.enter_context(null))
        for server in servers:
            send(server.target, REGISTER_BROKER, list(_PROFILE.registrations()))
            send(server.target, GET_TOPIC_ROUTE, _lookups(_LOOKUPS // 5))
        for number in range(1, rounds + 1):
            progress(f"guard: round {number} of {rounds}")
            fresh = _lookups(_LOOKUPS, asked_as=f"{number}-")
            calls: list[tuple[Sequence[Server], str, str, Sequence[bytes]]] = [
                (servers, REGISTRATION, REGISTER_BROKER, _repeated_registrations()),
                (apart, HIT, GET_TOPIC_ROUTE, _lookups(_LOOKUPS)),
                (apart, MISS, GET_TOPIC_ROUTE, fresh),
            ]
            for compared, call, path, requests in calls:
                if len(compared) > 1:
                    samples += [_cost(server, call, path, requests) for server in turned(compared, number)]
        for server in {*servers, *apart}:
            server.terminate()
    return samples


def _null_server(core: str | None) -> Server | None:
    try:
        return Server(NULL, core)
    except (Missing, RecipeFailed) as error:
        progress(f"guard: hits and misses are not compared: {error}")
        return None


def _cost(server: Server, call: str, path: str, requests: Sequence[bytes]) -> Sample:
    before = cpu_seconds(server.pids())
    send(server.target, path, requests)
    return Sample(server.name, call, "ms CPU per 1,000", (cpu_seconds(server.pids()) - before) * 1e6 / len(requests))


def _lookups(count: int, asked_as: str | None = None) -> list[bytes]:
    """Lookups of random topics. Asked in a way that nobody asked before, none is a hit, and the answer is the same."""
    return [
        route_service_pb2.GetTopicRouteRequest(
            topic=name, zone_name=None if asked_as is None else f"{asked_as}{number}"
        ).SerializeToString()
        for number, name in enumerate(_PROFILE.topic_names(count))
    ]


def _repeated_registrations() -> list[bytes]:
    registrations = list(_PROFILE.registrations())
    return registrations * (_REGISTRATIONS // len(registrations))


def ratios_of(samples: Iterable[Sample]) -> list[Ratio]:
    """What calls cost, beside what the other server's did."""
    values = {(figure.workload, figure.name): figure.values for figure in summarise(samples)}
    return [
        Ratio(call, costs, values[_PEERS[call], call])
        for (server, call), costs in sorted(values.items())
        if server == NATIVE
    ]


def known_costs() -> Costs:
    """What calls cost when they were measured last."""
    costs: Costs = json.loads(COSTS_FILE.read_text(encoding="utf-8"))["costs"]
    return costs


def bound_of(costs: Costs, ratio: Ratio) -> float:
    """What a ratio may be."""
    return costs[ratio.call] * _MAY_RISE


def judge(costs: Costs, ratios: Iterable[Ratio]) -> list[str]:
    """What is dearer than its bound allows, a sentence each."""
    return [
        f"one {ratio.call} costs {shown(ratio.value)} times the {_PEERS[ratio.call]} server's,"
        f" and may cost {shown(bound_of(costs, ratio))}: rounds {', '.join(map(shown, ratio.own))}"
        f" beside {', '.join(map(shown, ratio.peers))}"
        for ratio in ratios
        if ratio.value > bound_of(costs, ratio)
    ]


def guard(rounds: int) -> int:
    """Measures and judges; what is too dear is measured once more. Returns the exit code."""
    costs = known_costs()
    findings: list[str] = []
    for _ in range(2):
        ratios = _measured(rounds)
        for ratio in ratios:
            measured, bound = shown(ratio.value), shown(bound_of(costs, ratio))
            print(
                f"{ratio.call}: {measured} times the {_PEERS[ratio.call]} server's, may be {bound}",
                flush=True,
            )
        findings = judge(costs, ratios)
        for finding in findings:
            progress(f"guard: {finding}")
        if not findings:
            return 0
    return 1


def calibrate(rounds: int) -> None:
    """Measures, and writes down what calls cost; what cannot be compared here keeps what it had."""
    costs = dict(known_costs())
    for ratio in _measured(rounds):
        costs[ratio.call] = round(ratio.value, 3)
        print(f"{ratio.call}: {shown(ratio.value)} times the {_PEERS[ratio.call]} server's")
    COSTS_FILE.write_text(json.dumps({"machine": machine(), "rounds": rounds, "costs": costs}, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Guards or calibrates; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Fails if a call has become dearer.")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="default: %(default)s")
    parser.add_argument("--calibrate", action="store_true", help=f"write what all calls cost to {COSTS_FILE.name}")
    options = parser.parse_args(arguments)
    if (problem := native_problem()) is not None:
        print(f"guard: skipped: {problem}")
        return 0
    os.environ[generator.PROFILE] = generator.TRIAL  # costs were calibrated beside that null server, too
    if options.calibrate:
        calibrate(options.rounds)
        return 0
    return guard(options.rounds)


def _measured(rounds: int) -> list[Ratio]:
    samples = measure(rounds)
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
