"""Fails if a call has become much dearer than it was: ``python -m bench.guard``.

Bare times mean nothing on a shared machine. So each call is compared with the null server's in the same minutes:
registrations, lookups that the engine answers by itself (a hit), and those that call Python (a miss). Cargo builds the
null server.

Compared is CPU time of the processes of the server, in alternating rounds. Each server is judged by its cheapest
round: neighbours on a shared machine make a call dearer and never cheaper. A call that is too dear is measured again
from the start, and has to be too dear again. ``--calibrate`` writes the present costs into ``guard.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import grpc
from namesrv_api.v1 import route_service_pb2

from bench.figures import Sample, machine, parser, progress, report, shown, summarise
from bench.peers import generator
from bench.peers.generator import NotMeasured
from bench.peers.servers import NATIVE, NULL, Server, server_cores, turned
from bench.workload import Profile
from namesrv.engines.api import native_problem
from tests.support.programs.processes import cpu_seconds

REGISTRATION, HIT, MISS = "unchanged registration", "hit", "miss"
COSTS_FILE = Path(__file__).parent / "guard.json"
"""The costs of the last calibration, with its machine."""
_MAY_RISE = 1.5
"""Tolerance for other machines and unsteady ones. Twice as dear does not pass."""
_PROFILE = Profile(topics=2_000, brokers=100, width=4)
_ROUNDS, _LOOKUPS, _REGISTRATIONS = 5, 5_000, 1_000
_GET_TOPIC_ROUTE = "/namesrv_api.v1.RouteService/GetTopicRoute"
_REGISTER_BROKER = "/namesrv_api.v1.RegistrationService/RegisterBroker"
# Otherwise all channels of a process to one target share one connection.
_CLIENT_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
_CALL_SECONDS, _CONNECTIONS, _IN_FLIGHT = 30.0, 8, 32

Costs = Mapping[str, float]
"""Server CPU of each call, divided by that of the null server."""


def measure(rounds: int) -> list[Sample]:
    """Server CPU of each call at either server, in milliseconds per 1,000 calls."""
    samples: list[Sample] = []
    server_core, load_cores = server_cores()
    with ExitStack() as stack:
        if load_cores is not None:  # this process is the load
            stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, map(int, load_cores.split(",")))
        servers = [stack.enter_context(Server(name, server_core)) for name in (NATIVE, NULL)]
        registrations = list(_PROFILE.registrations())
        for server in servers:
            _send(server.target, _REGISTER_BROKER, registrations)
            _send(server.target, _GET_TOPIC_ROUTE, _lookups(_LOOKUPS // 5))
        for number in range(1, rounds + 1):
            progress(f"guard: round {number} of {rounds}")
            for call, path, requests in (
                (REGISTRATION, _REGISTER_BROKER, registrations * (_REGISTRATIONS // len(registrations))),
                (HIT, _GET_TOPIC_ROUTE, _lookups(_LOOKUPS)),
                (MISS, _GET_TOPIC_ROUTE, _lookups(_LOOKUPS, asked_as=f"{number}-")),
            ):
                samples += [_cost(server, call, path, requests) for server in turned(servers, number)]
        for server in servers:
            server.terminate()
    return samples


def _cost(server: Server, call: str, path: str, requests: Sequence[bytes]) -> Sample:
    before = cpu_seconds(server.pid)
    _send(server.target, path, requests)
    millis = (cpu_seconds(server.pid) - before) * 1e6 / len(requests)
    return Sample(server.name, call, "ms CPU per 1,000", millis)


def _lookups(count: int, asked_as: str | None = None) -> list[bytes]:
    """Lookups of random topics. With a zone that nobody asked for before, none is a hit, and the answer is the same."""
    return [
        route_service_pb2.GetTopicRouteRequest(
            topic=name, zone_name=None if asked_as is None else f"{asked_as}{number}"
        ).SerializeToString()
        for number, name in enumerate(_PROFILE.topic_names(count))
    ]


def _send(target: str, path: str, requests: Sequence[bytes]) -> None:
    """Makes unary calls, some of them at once; answers are not decoded. Raises grpc.RpcError if one fails."""

    async def work(call: Any, share: Iterator[bytes]) -> None:
        for request in share:
            assert await call(request, timeout=_CALL_SECONDS), "an answer has a header"

    async def send() -> None:
        share = iter(requests)
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as workers:
            for _ in range(_CONNECTIONS):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, _CLIENT_OPTIONS))
                call = channel.unary_unary(path, None, None)
                for _ in range(_IN_FLIGHT // _CONNECTIONS):
                    workers.create_task(work(call, share))

    asyncio.run(send())


def costs_of(samples: Iterable[Sample]) -> Costs:
    """What each call of native costs: its cheapest round, divided by the null server's cheapest."""
    cheapest = {(figure.workload, figure.name): min(figure.values) for figure in summarise(samples)}
    return {call: cheapest[NATIVE, call] / cheapest[NULL, call] for call in (REGISTRATION, HIT, MISS)}


def guard(options: argparse.Namespace) -> int:
    """Measures and judges; a call that is too dear is measured once more. Returns the exit code."""
    calibrated: dict[str, float] = json.loads(COSTS_FILE.read_text(encoding="utf-8"))["costs"]
    for _ in range(2):
        samples = measure(1 if options.smoke else options.rounds)
        report(options, summarise(sorted(samples, key=lambda sample: sample.workload)))
        costs, bounds = costs_of(samples), {call: cost * _MAY_RISE for call, cost in calibrated.items()}
        for call, cost in costs.items():
            print(f"{call}: {shown(cost)} times the null server's, may be {shown(bounds[call])}", flush=True)
        if options.calibrate:
            calibrated |= {call: round(cost, 3) for call, cost in costs.items()}
            COSTS_FILE.write_text(
                json.dumps({"machine": machine(), "rounds": options.rounds, "costs": calibrated}, indent=2) + "\n"
            )
            return 0
        if options.smoke or all(cost <= bounds[call] for call, cost in costs.items()):
            return 0
        progress("guard: a call costs too much")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Guards or calibrates; returns the exit code."""
    options = parser("guard", __doc__)
    options.set_defaults(rounds=_ROUNDS)
    options.add_argument("--calibrate", action="store_true", help=f"write what all calls cost to {COSTS_FILE.name}")
    given = options.parse_args(arguments)
    if (problem := native_problem()) is not None:
        print(f"guard: skipped: {problem}")
        return 0
    os.environ[generator.PROFILE] = generator.TRIAL  # costs were calibrated with that null server, too
    try:
        generator.program()
    except NotMeasured as error:
        print(f"guard: skipped: {error}")
        return 0
    return guard(given)


if __name__ == "__main__":
    sys.exit(main())
