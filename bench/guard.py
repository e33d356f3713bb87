"""Fails if a call has become much dearer than it was: ``python -m bench.guard``.

Bare times mean nothing on a machine that is shared. So each engine is compared with the naive server, in the same
minutes: CPU time of the server's processes, in several rounds that take turns. What is judged is the median of the
ratios, and the bounds leave room for other machines; a call that costs twice as much does not pass.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from namesrv_api.v1 import route_service_pb2

from bench.figures import Sample, machine_line, progress, shown, summarise, table
from bench.load import GET_TOPIC_ROUTE, REGISTER_BROKER, cpu_seconds, send
from bench.peers.servers import NAIVE, Server
from bench.workload import Profile

LOOK_UP = "look-up"
REGISTRATION = "unchanged registration"
TODAY = {
    ("grpcio", LOOK_UP): 1.45,
    ("grpcio", REGISTRATION): 1.2,
    ("native", LOOK_UP): 0.26,
    ("native", REGISTRATION): 0.46,
}
"""Server CPU of a call, divided by that of the naive server's, when it was measured last."""
_MAY_RISE = 1.5
"""Room for other machines and unsteady ones. Twice as dear does not pass."""
_PROFILE = Profile(topics=2_000, brokers=100, width=4)
_ROUNDS = 3
_LOOK_UPS = 5_000
_REGISTRATIONS = 1_000


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

    @property
    def bound(self) -> float:
        """What the median may be."""
        return TODAY[self.engine, self.call] * _MAY_RISE


def measure(rounds: int) -> list[Sample]:
    """Server CPU of each call on each server, in milliseconds per 1,000 calls; the servers take turns."""
    registrations = list(_PROFILE.registrations())
    look_ups = [
        route_service_pb2.GetTopicRouteRequest(topic=name).SerializeToString()
        for name in _PROFILE.topic_names(_LOOK_UPS)
    ]
    repeated = registrations * (_REGISTRATIONS // len(registrations))
    samples = []
    with ExitStack() as stack:
        names = [NAIVE, *dict.fromkeys(engine for engine, _ in TODAY)]
        servers = [stack.enter_context(Server(name, None)) for name in names]
        for server in servers:
            send(server.target, REGISTER_BROKER, registrations)
            send(server.target, GET_TOPIC_ROUTE, look_ups[: len(look_ups) // 5])
        for number in range(rounds):
            progress(f"guard: round {number + 1} of {rounds}")
            for call, path, requests in (
                (LOOK_UP, GET_TOPIC_ROUTE, look_ups),
                (REGISTRATION, REGISTER_BROKER, repeated),
            ):
                for server in servers:
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
        Ratio(
            engine, call, tuple(own / peer for own, peer in zip(values[engine, call], values[NAIVE, call], strict=True))
        )
        for engine, call in TODAY
    ]


def judge(ratios: Iterable[Ratio]) -> list[str]:
    """What is dearer than its bound allows, a sentence each."""
    return [
        f"a {ratio.call} on {ratio.engine} costs {shown(ratio.median)} times the naive server's, and may cost"
        f" {shown(ratio.bound)}: rounds {', '.join(map(shown, ratio.values))}"
        for ratio in ratios
        if ratio.median > ratio.bound
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and judges; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.guard", description="Fails if a call has become dearer.")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="default: %(default)s")
    options = parser.parse_args(arguments)
    samples = measure(options.rounds)
    ratios = ratios_of(samples)
    print(machine_line())
    print(table(summarise(sorted(samples, key=lambda sample: sample.workload))))
    for ratio in ratios:
        measured, bound = shown(ratio.median), shown(ratio.bound)
        print(f"{ratio.engine}, {ratio.call}: {measured} times the naive server's, may be {bound}")
    findings = judge(ratios)
    for finding in findings:
        print(f"guard: {finding}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    # Otherwise the servers would outlive a program that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    sys.exit(main())
