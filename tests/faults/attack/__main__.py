"""``python -m tests.faults.attack [ATTACK...]``: attacks every listener, one attack after the other, all on loopback.

It starts the servers itself, prints a table, and ends with exit code 1 if an honest call failed or memory stayed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from urllib.request import urlopen

import grpc
from broker_agent_api.v1 import client_service_pb2
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from namesrv_api.v1.registration_service_pb2 import BrokerHeartbeatRequest

from namesrv_common.client.channels import open_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.process.program import use_all_descriptors
from tests.faults.attack import addresses
from tests.faults.attack.runner import HEAD, NO_SCAN, Target, exit_code, register_topics, run
from tests.support.programs.agents import Agent, AgentClient
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import identity

MOST_SECONDS = 20.0
"""Of each attack."""
ASK_SECONDS = 10.0
"""Deadline of an honest call."""
COMES_BACK = [
    ("grpc.use_local_subchannel_pool", 1),
    *((f"grpc.{name}_reconnect_backoff_ms", 100) for name in ("initial", "min", "max")),
]
"""Options of honest clients: a connection of their own, and a new one soon after it was cut."""


def _route(client: Client) -> None:
    if client.route() is None:
        raise LookupError("the topic is gone")


def _honest_calls(client: Client) -> Callable[[], object]:
    """Returns a function that makes the next call each time: a lookup, a heartbeat, or a check of health."""
    request, health = BrokerHeartbeatRequest(broker=identity()), HealthStub(client.connection)
    calls: Iterator[Callable[[], object]] = cycle(
        (
            lambda: _route(client),
            lambda: client.registration.BrokerHeartbeat(request, timeout=ASK_SECONDS),
            lambda: health.Check(HealthCheckRequest(), timeout=ASK_SECONDS),
        )
    )

    def ask() -> None:
        next(calls)()

    return ask


def _listen() -> tuple[str, ...]:
    """Flags of a program that the attacker and honest clients reach, each from an address of its own."""
    return ("--listen", "0.0.0.0:0", "--allow-insecure") if addresses.are_here() else ()


def _at(address: str, endpoint: Endpoint) -> Endpoint:
    """An endpoint as a program with this address dials it."""
    return Endpoint(address, endpoint.port) if addresses.are_here() else endpoint


def _client(stack: ExitStack, server: NamesrvProcess, address: str) -> Client:
    """A client with an address of its own, which comes back at once when it is cut."""
    return Client(stack.enter_context(open_channel(_at(address, server.endpoint), COMES_BACK)))


def namesrv(stack: ExitStack) -> list[Target]:
    """A name server's listener of gRPC, with an honest client at an address of its own."""
    server = stack.enter_context(NamesrvProcess(*NO_SCAN, *_listen()))
    honest = _client(stack, server, addresses.HONEST)
    register_topics(honest)

    def arrive() -> None:
        with ExitStack() as opened:
            _route(_client(opened, server, addresses.HONEST))

    return [Target("gRPC", "grpc", server.endpoint.port, server, _honest_calls(honest), arrive)]


def beside_grpc(stack: ExitStack) -> list[Target]:
    """A name server's other listeners."""
    host = "0.0.0.0" if addresses.are_here() else "127.0.0.1"
    listeners = ("--metrics-listen", f"{host}:0", "--remoting-listen", f"{host}:0")
    server = stack.enter_context(NamesrvProcess(*NO_SCAN, *_listen(), *listeners))
    register_topics(stack.enter_context(server.connect()))
    started = server.wait_for("namesrv_started")
    metrics, remoting = Endpoint.parse(str(started["metrics"])), Endpoint.parse(str(started["remoting"]))

    def lookup() -> None:
        with RemotingClient(str(_at(addresses.HONEST, remoting))) as peer:
            answer = peer.ask(105, {"topic": "TopicTest"})
        if answer.code:
            raise LookupError(answer.remark)

    def page() -> None:
        with urlopen(f"http://{_at(addresses.HONEST, metrics)}/healthz", timeout=ASK_SECONDS) as answer:
            answer.read()

    return [
        Target("RocketMQ's protocol", "remoting", remoting.port, server, lookup),
        Target("metrics and health", "metrics", metrics.port, server, page),
    ]


def agent(stack: ExitStack) -> list[Target]:
    """An agent's two listeners."""
    server = stack.enter_context(NamesrvProcess())
    everywhere = ("--listen", "0.0.0.0:0", "--fast-listen", "0.0.0.0:0") if addresses.are_here() else ()
    process = stack.enter_context(Agent(str(server.endpoint), *everywhere))
    listen = Endpoint.parse(str(process.wait_for("agent_started")["listening_on"]))
    operators, others = (
        stack.enter_context(open_channel(_at(addresses.HONEST, one), COMES_BACK)) for one in (process.endpoint, listen)
    )
    operator, clients = AgentClient(operators), ClientServiceStub(others)

    def list_consumers() -> None:
        request = client_service_pb2.ListConsumerIdsRequest(consumer_group="none")
        try:
            clients.ListConsumerIds(request, timeout=ASK_SECONDS)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    return [
        Target("agent, operators", "grpc", process.endpoint.port, process, operator.status, attacked="agent"),
        Target("agent, clients", "grpc", listen.port, process, list_consumers, attacked="clients"),
    ]


ROUNDS = (("grpc", namesrv), ("remoting metrics", beside_grpc), ("agent", agent))
"""What is attacked, one after the other, by name: starts it, and the stack ends it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each attack, at most 20")
    parser.add_argument("--on", default="", help="a listener: grpc, remoting, metrics or agent")
    parser.add_argument("attacks", nargs="*", help="names of attacks; none: all")
    given = parser.parse_args(arguments)
    if not addresses.are_here():
        if not (problem := addresses.why_not()):
            return addresses.run_inside([sys.executable, "-m", "tests.faults.attack", *(arguments or sys.argv[1:])])
        sys.stderr.write(f"attacks come from the address of honest clients, and some are left out: {problem}\n")
    use_all_descriptors()
    seconds = min(given.seconds, MOST_SECONDS)
    wanted = frozenset(given.attacks)
    sys.stdout.write(f"{HEAD}\n")
    held: list[bool] = []
    for begin in (begin for name, begin in ROUNDS if given.on in name):
        with ExitStack() as stack:
            for target in begin(stack):
                for attack in (name for name in target.attacks() if not wanted or name in wanted):
                    outcome = run(target, attack, seconds)
                    sys.stdout.write(f"{outcome.row()}\n")
                    sys.stdout.flush()
                    held.append(outcome.held)
    if held:
        sys.stdout.write(f"{sum(held)} of {len(held)} attacks withstood\n")
    else:
        sys.stderr.write(f"there is no attack {' '.join(given.attacks)}\n")
    return exit_code(held)


if __name__ == "__main__":
    sys.exit(main())
