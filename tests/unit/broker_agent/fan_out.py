"""Targets and a BrokerOuterAPI over fake name servers, without a controller."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from broker_agent.broker_outer_api import BrokerOuterAPI, Results
from broker_agent.connection_options import ConnectionOptions
from broker_agent.namesrv_target import NamesrvTarget
from broker_agent.timing import Timing
from tests.unit.broker_agent.fake_name_server import DEADLINE, FakeNameServer

OPTIONS = ConnectionOptions(connect_timeout_millis=500, keepalive_time_millis=5_000, keepalive_timeout_millis=5_000)
BROKER = route_data_pb2.BrokerIdentity(
    cluster_name="C", broker_name="broker-a", broker_id=0, broker_addr="10.0.0.1:10911"
)


def registration(counter: int = 0) -> pb.RegisterBrokerRequest:
    return pb.RegisterBrokerRequest(
        broker=BROKER, data_version=route_data_pb2.DataVersion(timestamp_millis=1, counter=counter)
    )


class Listener:
    """Remembers what a target said, and lets a test wait for it."""

    def __init__(self) -> None:
        self.wanted: list[NamesrvTarget] = []
        self.accepted = 0
        self._happened = threading.Condition()

    def registration_wanted(self, target: NamesrvTarget) -> None:
        with self._happened:
            self.wanted.append(target)
            self._happened.notify_all()

    def registration_accepted(self) -> None:
        with self._happened:
            self.accepted += 1
            self._happened.notify_all()

    def wait_until_wanted(self, times: int) -> None:
        with self._happened:
            assert self._happened.wait_for(lambda: len(self.wanted) >= times, DEADLINE)


class FanOut:
    """Targets for the name servers, started, with an open channel where there is a name server."""

    def __init__(self, *servers: FakeNameServer, target_class: type[NamesrvTarget] = NamesrvTarget) -> None:
        self.timing = Timing()
        self.listener = Listener()
        self.targets = [target_class(s.endpoint, "test", OPTIONS, self.listener, self.timing) for s in servers]
        self.api = BrokerOuterAPI(self.targets, self.timing)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.api.close)
        for target in self.targets:
            target.open()
            self._stack.callback(target.close)
        self.listener.wait_until_wanted(len(self.targets))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def register(self, *, force: bool = False, timeout_seconds: float = DEADLINE, counter: int = 0) -> Results:
        return self.api.register_broker_all(registration(counter), force=force, timeout_seconds=timeout_seconds)
