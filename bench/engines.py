"""Look-ups through real servers on loopback, beside a naive peer: ``python -m bench.engines``.

All servers hold the same table and are measured in turn within each round, so that their ratios stand on the same
minute of the same machine. The load comes from one Python process, which is slower than the native engine: then calls
per second are the client's figure, and the server's CPU time per call is what to compare.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from bench.figures import Figure, Sample, machine_line, progress, shown, summarise, table, write_json
from bench.load import CLIENT_OPTIONS, GET_TOPIC_ROUTE, REGISTER_BROKER
from bench.workload import Profile, topic_name
from tests.processes import BIN, Process

ENGINES = ("grpcio", "native")
PEER = "naive"
_CALL_SECONDS = 30.0
_LOAD_SECONDS = 120.0
"""A load that takes longer than this hangs."""

_CPU = "server CPU per 1,000 calls"
_RATE = "calls per second"
_P99 = "latency, p99"
_CLIENT_CPU = "client CPU per 1,000 calls"


class Load(NamedTuple):
    """What one round asks of one server."""

    profile: Profile = Profile(20_000, 1_000, 1)
    calls: int = 20_000
    connections: int = 16
    in_flight: int = 64

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"{self.profile.name}, {self.in_flight} calls in flight over {self.connections} connections"


class Server(Process):
    """A server on a free port of loopback, in a process of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == PEER:
            program, started = [sys.executable, "-m", "bench.naive_server"], "naive_started"
        else:
            listen = ("--listen", "127.0.0.1:0", "--log-format", "json")
            program, started = [str(BIN / "namesrv"), "serve", "--engine", name, *listen], "namesrv_started"
        super().__init__(program)
        try:
            self.target = str(self.wait_for(started)["listen"])
        except BaseException:
            self.__exit__()
            raise

    def fill(self, profile: Profile) -> route_data_pb2.TopicRouteData:
        """Registers all brokers; returns one route, to compare servers."""
        with grpc.insecure_channel(self.target, CLIENT_OPTIONS) as channel:
            register = channel.unary_unary(REGISTER_BROKER, None, None)
            for request in profile.registrations():
                register(request, timeout=_CALL_SECONDS)
            request = route_service_pb2.GetTopicRouteRequest(topic=topic_name(0)).SerializeToString()
            answer = channel.unary_unary(GET_TOPIC_ROUTE, None, None)(request, timeout=_CALL_SECONDS)
        return route_service_pb2.GetTopicRouteResponse.FromString(answer).route

    def measure(self, load: Load) -> list[Sample]:
        """One round of look-ups, from a process of its own."""
        options = {
            "target": self.target,
            "server-pid": self._popen.pid,
            "calls": load.calls,
            "connections": load.connections,
            "in-flight": load.in_flight,
            **load.profile._asdict(),
        }
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        program = [sys.executable, "-m", "bench.load", *arguments]
        outcome: dict[str, Any] = json.loads(subprocess.check_output(program, timeout=_LOAD_SECONDS))
        seconds, latencies = outcome["seconds"], outcome["latencies"]
        assert len(latencies) == load.calls, "every call was answered"
        millis_per_thousand = 1_000_000 / load.calls
        return [
            Sample(self.name, _CPU, "ms", outcome["server_cpu"] * millis_per_thousand),
            Sample(self.name, _CLIENT_CPU, "ms", outcome["client_cpu"] * millis_per_thousand),
            Sample(self.name, _RATE, "1/s", load.calls / seconds),
            Sample(self.name, "latency, median", "ms", latencies[load.calls // 2] * 1000),
            Sample(self.name, _P99, "ms", latencies[load.calls * 99 // 100] * 1000),
            Sample(self.name, "cores that the server had", "cores", outcome["server_cpu"] / seconds),
            Sample(self.name, "cores that the client had", "cores", outcome["client_cpu"] / seconds),
        ]


def measure(load: Load, rounds: int) -> list[Sample]:
    """Starts and fills the servers, then measures them in turn; each round begins with another one."""
    samples: list[Sample] = []
    with ExitStack() as stack:
        servers = []
        for name in (*ENGINES, PEER):
            progress(f"engines: filling {name}")
            server = stack.enter_context(Server(name))
            route = server.fill(load.profile)
            servers.append(server)
            if server is servers[0]:
                first = route
            assert route == first, f"{name} answers something else:\n{route}"
        for number in range(rounds):
            start = number % len(servers)
            for server in (*servers[start:], *servers[:start]):
                progress(f"engines: round {number + 1} of {rounds}, {server.name}")
                samples += server.measure(load)
        for server in servers:
            server.terminate()
    return sorted(samples, key=lambda sample: [*ENGINES, PEER].index(sample.workload))


def ratios(figures: Sequence[Figure]) -> list[Figure]:
    """How many times better than the peer each engine was, round by round."""
    values = {(figure.workload, figure.name): figure.values for figure in figures}
    found = []
    for engine in ENGINES:
        for name, larger_is_better in ((_CPU, False), (_RATE, True), (_P99, False)):
            pairs = zip(values[engine, name], values[PEER, name], strict=True)
            better = [own / peer if larger_is_better else peer / own for own, peer in pairs]
            found.append(Figure(f"{engine} against {PEER}", name, "times better", tuple(better)))
    return found


def remarks(figures: Sequence[Figure]) -> list[str]:
    """Says whose figure the calls per second are, for each server."""
    medians = {(figure.workload, figure.name): figure.median for figure in figures}
    texts = []
    for server in (*ENGINES, PEER):
        bottleneck = "the client" if medians[server, _CLIENT_CPU] > medians[server, _CPU] else "the server"
        alone = 1_000_000 / medians[server, _CPU]
        texts.append(
            f"{server}: {bottleneck} had more to do and set the pace; by its CPU time the server would do about"
            f" {shown(alone)} calls/s on a core of its own"
        )
    return texts


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m bench.engines", description="Measures look-ups through servers.")
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--calls", type=int, default=Load().calls, help="per server and round; default: %(default)s")
    options = parser.parse_args(arguments)
    load = Load(calls=options.calls)
    figures = summarise(measure(load, options.rounds))
    figures += ratios(figures)
    print(machine_line())
    print(f"GetTopicRoute on loopback: {load.name}, {load.calls:,} calls, {options.rounds} rounds in turn.")
    print(table(figures))
    print("\n".join(remarks(figures)))
    if options.json:
        write_json(options.json, figures, rounds=options.rounds, load=load.name, calls=load.calls)


if __name__ == "__main__":
    main()
