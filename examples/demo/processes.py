"""The processes of the demo: each is ready when it says so in its log, and ends with the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
from namesrv_api.v1 import route_data_pb2, route_service_pb2
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

BIN = Path(sys.executable).parent
TOPICS = Path(__file__).with_name("topics.json")
WAIT_SECONDS = 60.0

ValueT = TypeVar("ValueT")


def eventually(ask: Callable[[], ValueT], accept: Callable[[ValueT], bool]) -> None:
    """Asks until the answer is accepted. Raises TimeoutError after a minute."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not accept(answer := ask()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_SECONDS} s; the last answer is {answer!r}")
        time.sleep(0.01)


class Process:
    """A program of this project that logs JSON lines to standard error."""

    def __init__(self, program: str, *arguments: str, started: str) -> None:
        """Starts it, and waits for the log event ``started``."""
        command = [str(BIN / program), "serve", "--log-format", "json", *arguments]
        self._popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._popen.stderr is not None
        self.started: dict[str, Any] = {}
        """The fields of the event."""
        lines: list[str] = []
        for line in self._popen.stderr:
            lines.append(line)
            if line.startswith("{") and json.loads(line)["event"] == started:
                self.started = json.loads(line)
                break
        else:
            raise RuntimeError(f"{program} has ended:\n{''.join(lines)}")
        threading.Thread(target=self._popen.stderr.read, daemon=True).start()  # a full pipe would block it

    def kill(self) -> None:
        """Kills it, like a crash."""
        self._popen.kill()
        self._popen.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class NameServer(Process):
    """A name server on a free port of loopback, and the calls that read its routes."""

    def __init__(self, name: str, engine: str) -> None:
        flags = ("--listen", "127.0.0.1:0", "--name", name, "--engine", engine, "--warm-up-millis", "0")
        super().__init__("namesrv", *flags, started="namesrv_started")
        self.endpoint = str(self.started["listen"])
        self._connection = grpc.insecure_channel(self.endpoint)
        self.routes = RouteServiceStub(self._connection)

    def addresses(self, topic: str) -> dict[int, str]:
        """The addresses of the topic's first broker group, by broker id; empty if there is no route."""
        try:
            route = self.routes.GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic=topic), timeout=10).route
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.NOT_FOUND:
                return {}
            raise
        return addresses_of(route.broker_datas[0])

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self.kill()


class Agent(Process):
    """The agent of a broker that is taken for alive."""

    def __init__(self, namesrv: str, broker_id: int, broker_addr: str, ha_server_addr: str) -> None:
        super().__init__(
            "broker-agent",
            *("--listen", "127.0.0.1:0", "--namesrv", namesrv, "--topics", str(TOPICS), "--probe", "none"),
            *("--broker-name", "broker-a", "--broker-id", str(broker_id), "--broker-addr", broker_addr),
            *("--ha-server-addr", ha_server_addr),
            started="agent_started",
        )


def addresses_of(group: route_data_pb2.BrokerData) -> dict[int, str]:
    """The addresses of a group, by broker id."""
    return {broker.broker_id: broker.broker_addr for broker in group.broker_addrs}
