"""Costs of a lookup and a registration in one process and in several (``--workers``).

On a machine whose cores are also the load's, several processes cannot show what they are for, a higher rate. What each
call costs in processor time, all processes of the server together, shows whether they would on a machine with more.

    python -m bench.workers --workers 1 2 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from namesrv_api.v1 import registration_service_pb2, route_service_pb2

from bench.load import GET_TOPIC_ROUTE, REGISTER_BROKER, cpu_seconds, send
from bench.peers.servers import own_engines
from bench.workload import Profile
from support.processes import NamesrvProcess, eventually

PROFILE = Profile(topics=20_000, brokers=1_000, width=1)
HEARTBEAT = "/namesrv_api.v1.RegistrationService/BrokerHeartbeat"


@contextmanager
def name_server(engine: str, workers: int) -> Iterator[tuple[str, list[int]]]:
    """A name server with the profile's tables; its address and the processes that answer."""
    with NamesrvProcess("--workers", str(workers), engine=engine) as server:
        eventually(lambda: len(server.events("namesrv_started")) >= workers)
        target = str(server.endpoint)
        send(target, REGISTER_BROKER, list(PROFILE.registrations()))
        eventually(lambda: revisions(server), lambda seen: len(seen) == 1)
        started = [int(line["process"]) for line in server.events("worker_started")]
        yield target, started or [server.pid]


def revisions(server: NamesrvProcess) -> set[int]:
    """At which revisions those processes are that some connections come to."""
    found = set()
    for _ in range(16):
        with server.connect() as client:
            status = client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=30)
            found.add(status.header.revision)
    return found


def heartbeats(count: int) -> list[bytes]:
    """Encoded heartbeats of the profile's brokers, in turn."""
    brokers = [
        registration_service_pb2.RegisterBrokerRequest.FromString(request).broker for request in PROFILE.registrations()
    ]
    calls = [registration_service_pb2.BrokerHeartbeatRequest(broker=broker).SerializeToString() for broker in brokers]
    return [calls[number % len(calls)] for number in range(count)]


def main() -> None:
    """Measures in rounds, each number of processes in turn, and prints medians and extremes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of processes")
    parser.add_argument("--engine", default="grpcio", choices=own_engines())
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured, in turn")
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each kind a round")
    arguments = parser.parse_args()
    lookups = [
        route_service_pb2.GetTopicRouteRequest(topic=topic).SerializeToString()
        for topic in PROFILE.topic_names(arguments.calls)
    ]
    kinds = {"lookups": (GET_TOPIC_ROUTE, lookups), "heartbeats": (HEARTBEAT, heartbeats(arguments.calls))}
    costs: dict[tuple[str, int], list[float]] = {(kind, count): [] for kind in kinds for count in arguments.workers}
    for _ in range(arguments.rounds):
        for count in arguments.workers:
            with name_server(arguments.engine, count) as (target, processes):
                for kind, (path, requests) in kinds.items():
                    before = cpu_seconds(processes)
                    send(target, path, requests)
                    costs[kind, count].append((cpu_seconds(processes) - before) * 1e6 / len(requests))
    print(f"{arguments.engine}, {PROFILE.name}, {arguments.rounds} rounds of {arguments.calls:,} calls")
    for (kind, count), micros in costs.items():
        spread = f"{min(micros):.0f} to {max(micros):.0f}"
        print(f"{kind:<11} {count} workers: {statistics.median(micros):6.0f} us of CPU a call ({spread})")


if __name__ == "__main__":
    main()
