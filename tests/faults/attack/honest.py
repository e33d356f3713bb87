"""Honest clients during an attack, in a process of their own: ``python -m tests.faults.attack.honest SETUP``.

SETUP is JSON, with the fields of ``Setup``. It prints a line when it is connected, and waits for one. Then it calls,
and prints JSON: for each kind of call, the seconds that the answered ones took and what was wrong with the others.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1.route_service_pb2 import GetTopicRouteRequest

from groundwork.channels import ClientFiles, ClientSecurity, open_channel
from tests.faults.attack.runner import error_text
from tests.support.programs.processes import Client
from tests.support.programs.rocketmq import RemotingClient, broker_fields, register
from tests.support.registrations import identity, registration

ASK_SECONDS = 10.0
"""Deadline of a call."""
PREFIX = "honest"
"""Names of the brokers begin with it."""
OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
PAUSES = {"lookups": 0.005, "misses": 0.02, "heartbeats": 0.02, "remoting lookups": 0.02}
"""Seconds between two calls of a kind; ``LONGER`` of all others."""
LONGER = 0.2


class Setup(NamedTuple):
    """What is called, for how long."""

    grpc: str
    """HOST:PORT."""
    remoting: str
    """The same of RocketMQ's protocol; empty: it is not called."""
    authorities: str
    """Certificates to check the server with, where it has TLS; then there are lookups on new connections, too."""
    seconds: float


def _calls(setup: Setup, opened: ExitStack) -> Iterator[tuple[str, Callable[[], object]]]:
    def connect() -> Client:
        files = ClientFiles(Path(setup.authorities)) if setup.authorities else None
        security = None if files is None else ClientSecurity(files)
        return Client(opened.enter_context(open_channel(setup.grpc, OPTIONS, security)))

    client = connect()
    numbers, versions = count(), count(2)

    def look_up(client: Client, topic: str) -> None:
        try:
            client.routes.GetTopicRoute(GetTopicRouteRequest(topic=topic), timeout=ASK_SECONDS)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise

    def connect_and_look_up() -> None:
        with open_channel(setup.grpc, OPTIONS, ClientSecurity(ClientFiles(Path(setup.authorities)))) as connection:
            look_up(Client(connection), "TopicTest")

    yield "lookups", lambda: look_up(client, "TopicTest")
    if setup.authorities:
        yield "new connections", connect_and_look_up
        return
    yield "misses", lambda: look_up(client, f"absent-{next(numbers)}")
    sign = pb.BrokerHeartbeatRequest(broker=identity())
    yield "heartbeats", lambda: client.registration.BrokerHeartbeat(sign, timeout=ASK_SECONDS)
    for name, topics in (("1,000 topics", 1_000), ("100,000 topics", 100_000)):
        yield name, _registers(connect(), topics, versions)
    yield "channel", _keeps_channel(connect())
    if setup.remoting:
        peer, other = (opened.enter_context(RemotingClient(setup.remoting, timeout_seconds=ASK_SECONDS)) for _ in "12")
        names = [f"{PREFIX}-remoting-{number}" for number in range(1_000)]
        broker = broker_fields(f"{PREFIX}-remoting", "127.0.0.1:7")
        yield "remoting lookups", lambda: peer.ask(105, {"topic": "TopicTest"})
        yield "remoting 1,000 topics", lambda: register(other, names, broker, next(versions))


def _registers(client: Client, topics: int, versions: Iterator[int]) -> Callable[[], object]:
    names = [f"{PREFIX}-{topics}-{number}" for number in range(topics)]
    request = registration(names, identity(f"127.0.0.1:{topics % 60_000 + 1}", name=f"{PREFIX}-{topics}"))

    def again() -> None:
        request.data_version.counter = next(versions)
        client.registration.RegisterBroker(request, timeout=ASK_SECONDS)

    return again


def _keeps_channel(client: Client) -> Callable[[], object]:
    """A broker that is registered over a channel. The call fails once the channel has ended."""
    channel = client.open_channel()
    broker = identity("127.0.0.1:8", name=f"{PREFIX}-channel")
    client.registration.RegisterBroker(registration(["T"], broker, channel_id=channel.id), timeout=ASK_SECONDS)

    def check() -> None:
        if not channel._call.is_active():
            raise LookupError(f"the channel has ended: {channel._call.code()}")

    return check


def main(arguments: Sequence[str]) -> None:
    """Calls for the time, and prints the outcomes."""
    setup = Setup(**json.loads(arguments[0]))
    results: dict[str, dict[str, list[Any]]] = {}
    with ExitStack() as opened:
        calls = list(_calls(setup, opened))
        sys.stdout.write("connected\n")
        sys.stdout.flush()
        sys.stdin.readline()  # until the attack has begun
        until = time.monotonic() + setup.seconds
        threads = []
        for name, ask in calls:
            result: dict[str, list[Any]] = {"took": [], "problems": []}
            results[name] = result
            pause = PAUSES.get(name, LONGER)
            threads.append(threading.Thread(target=_repeat, args=(ask, pause, until, result), daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(setup.seconds + 2 * ASK_SECONDS)
        sys.stdout.write(f"{json.dumps(results)}\n")
        sys.stdout.flush()
        sys.stdin.readline()  # until nobody minds that brokers leave


def _repeat(ask: Callable[[], object], pause: float, until: float, result: dict[str, list[Any]]) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            ask()
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes to the table
            result["problems"].append(error_text(error))
        else:
            result["took"].append(time.monotonic() - began)
        time.sleep(pause)


if __name__ == "__main__":
    main(sys.argv[1:])
