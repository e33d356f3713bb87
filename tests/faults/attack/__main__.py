"""``python -m tests.faults.attack [ATTACK...]``: attacks every listener, one attack after the other, all on loopback.

It starts the servers itself and prints a table. The exit code is 1 if an honest call failed or memory stayed, and 2 if
there is no such attack.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import cycle

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
from tests.faults.attack.runner import HEAD, Target, run
from tests.support.programs.agents import NEVER_SCAN, Agent, AgentClient
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import identity, registration

TOPICS = 50
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


def _reached(endpoint: Endpoint) -> Endpoint:
    """An endpoint as honest clients dial it, and so have an address of their own."""
    return Endpoint(addresses.HONEST, endpoint.port) if addresses.are_here() else endpoint


def namesrv(stack: ExitStack) -> list[Target]:
    """A name server's listeners, with an honest client of each."""
    host = "0.0.0.0" if addresses.are_here() else "127.0.0.1"
    anywhere = [f"--{name}={host}:0" for name in ("listen", "remoting-listen")]
    server = stack.enter_context(NamesrvProcess(*NEVER_SCAN, "--allow-insecure", *anywhere))
    honest = Client(stack.enter_context(open_channel(_reached(server.endpoint), COMES_BACK)))
    topics = ["TopicTest", *(f"topic-{number}" for number in range(TOPICS))]
    honest.registration.RegisterBroker(registration(topics), timeout=Client.TIMEOUT)
    remoting = _reached(Endpoint.parse(str(server.wait_for("namesrv_started")["remoting"])))

    def arrive() -> None:
        with open_channel(_reached(server.endpoint), COMES_BACK) as opened:
            _route(Client(opened))

    def lookup() -> None:
        with RemotingClient(str(remoting)) as peer:
            answer = peer.ask(105, {"topic": "TopicTest"})
        if answer.code:
            raise LookupError(answer.remark)

    return [
        Target("gRPC", "grpc", server.endpoint.port, server, _honest_calls(honest), arrive),
        Target("RocketMQ's protocol", "remoting", remoting.port, server, lookup),
    ]


def agent(stack: ExitStack) -> list[Target]:
    """An agent's two listeners."""
    server = stack.enter_context(NamesrvProcess())
    everywhere = ("--listen", "0.0.0.0:0", "--fast-listen", "0.0.0.0:0") if addresses.are_here() else ()
    process = stack.enter_context(Agent(str(server.endpoint), *everywhere))
    operators, others = (
        stack.enter_context(open_channel(_reached(one), COMES_BACK)) for one in (process.endpoint, process.ordinary)
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
        Target("agent, clients", "grpc", process.ordinary.port, process, list_consumers, attacked="clients"),
    ]


ROUNDS = {("grpc", "remoting"): namesrv, ("agent",): agent}
"""What is attacked, one after the other, by names of its listeners: starts it, and the stack ends it."""
LISTENERS = [name for names in ROUNDS for name in names]


def main() -> int:
    """Prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each attack")
    parser.add_argument("--on", choices=LISTENERS, help="attack only this")
    parser.add_argument("attacks", nargs="*", help="names of attacks; none: all")
    given = parser.parse_args()
    if not addresses.are_here():
        if not (problem := addresses.why_not()):
            return addresses.run_inside([sys.executable, "-m", "tests.faults.attack", *sys.argv[1:]])
        sys.stderr.write(f"attacks come from the address of honest clients, and some are left out: {problem}\n")
    use_all_descriptors()
    wanted = frozenset(given.attacks)
    sys.stdout.write(f"{HEAD}\n")
    held: list[bool] = []
    for begin in (begin for names, begin in ROUNDS.items() if given.on in (None, *names)):
        with ExitStack() as stack:
            for target in (one for one in begin(stack) if given.on in (None, "agent", one.listener)):
                for attack in (name for name in target.attacks() if not wanted or name in wanted):
                    is_held, row = run(target, attack, given.seconds)
                    sys.stdout.write(f"{row}\n")
                    sys.stdout.flush()
                    held.append(is_held)
    if not held:
        sys.stderr.write(f"there is no attack {' '.join(given.attacks)}\n")
        return 2
    sys.stdout.write(f"{sum(held)} of {len(held)} attacks withstood\n")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
