"""Whatever happens to the tables: what the native engine answers by itself is what they hold, while others read on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import grpc
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import invariant
from namesrv_api.v1 import route_service_pb2 as pb
from namesrv_api.v1 import route_service_pb2_grpc

from namesrv.core.changes import Change, ListenerOrder
from namesrv.engines.factory import build_server
from namesrv.grpc_api.handlers import handlers_of_server
from namesrv.server.listener import ROUTE_SERVICE
from namesrv.settings import NamesrvSettings
from tests.support.engines import require_native
from tests.unit.namesrv.servicers import route_servicer
from tests.unit.namesrv.watch_machine import TOPICS, WatchesAgainstLookups

READERS = 3
ZONES = (None, "z1")
TIMEOUT = 20.0

Answers = dict[tuple[str, str | None], bytes | None]


class Reader:
    """A connection that looks topics up repeatedly, in a thread of its own."""

    def __init__(self, machine: KeptAnswersAgainstTables, target: str) -> None:
        self._machine = machine
        self._channel = grpc.insecure_channel(target)
        self.stub = route_service_pb2_grpc.RouteServiceStub(self._channel)
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for topic in itertools.cycle(TOPICS):
            if self._stop.is_set():
                return
            told = self._machine.told
            try:
                answer = self.stub.GetTopicRoute(pb.GetTopicRouteRequest(topic=topic), timeout=TIMEOUT)
            except grpc.RpcError:
                continue  # it is not there, or the test is over
            revision = answer.header.revision
            if revision < told:
                self.problems.append(f"{topic} of revision {revision}, where {told} had been told of")
            expected = self._machine.expected.get(revision, {}).get((topic, None))
            if answer.route.SerializeToString(deterministic=True) != normal(expected):
                self.problems.append(f"{topic}: the header of revision {revision} with another one's route")

    def lookup(self, topic: str, zone: str | None) -> pb.GetTopicRouteResponse | None:
        try:
            return self.stub.GetTopicRoute(pb.GetTopicRouteRequest(topic=topic, zone_name=zone), timeout=TIMEOUT)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return None

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """After the server has ended, so that no call of its is under way."""
        self._thread.join(TIMEOUT)
        self._channel.close()


def normal(route: bytes | None) -> bytes:
    parsed = pb.GetTopicRouteResponse().route
    parsed.ParseFromString(route or b"")
    return parsed.SerializeToString(deterministic=True)


class KeptAnswersAgainstTables(WatchesAgainstLookups):
    def __init__(self) -> None:
        super().__init__()
        self.expected: dict[int, Answers] = {}
        self.told = 0
        self.readers: list[Reader] = []
        self.loop: asyncio.AbstractEventLoop
        self.server: Any = None

    def _start(self) -> None:
        """After the fleet's own beginning, which has no order with another one's."""
        state = self.fleet.state
        state.change_log.listen(self._note, ListenerOrder.CACHED_ANSWERS)  # before the engine
        self._note(state.change_log.last)
        self.loop = asyncio.new_event_loop()
        configured = NamesrvSettings.load(None, {"listen": "127.0.0.1:0"})
        self.server = build_server(configured)
        self.server.keep_answers_of(state, follows_traces=False)
        handlers_of_server(20.0).add_service(self.server, ROUTE_SERVICE, route_servicer(self.fleet))
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.loop.run_until_complete(self.server.start())
        self.readers = [Reader(self, f"127.0.0.1:{port}") for _ in range(READERS)]

    def _note(self, change: Change) -> None:
        state = self.fleet.state
        self.expected[change.revision] = {
            (topic, zone): state.route(topic, zone) for topic in [*TOPICS, "T5"] for zone in ZONES
        }

    @invariant()
    def every_connection_is_answered_what_the_tables_hold(self) -> None:
        if not self.readers:
            self._start()
        self.told = self.fleet.state.revision
        self.loop.run_until_complete(self.loop.run_in_executor(None, self._compare))
        assert not [problem for reader in self.readers for problem in reader.problems]

    def _compare(self) -> None:
        state = self.fleet.state
        held = self.expected[state.revision]
        for reader in (self.readers[0], self.readers[-1]):  # the first may fill what the other one gets
            for (topic, zone), route in held.items():
                answer = reader.lookup(topic, zone)
                assert (answer is None) == (route is None)
                if answer is not None:
                    assert answer.header == state.header()
                    assert answer.route.SerializeToString(deterministic=True) == normal(route)
            batch = reader.stub.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=TOPICS), timeout=TIMEOUT)
            assert batch.header == state.header()
            found = {named.topic: named.route.SerializeToString(deterministic=True) for named in batch.routes}
            assert found == {topic: normal(held[topic, None]) for topic in TOPICS if held[topic, None] is not None}
            clusters = reader.stub.GetBrokerClusterInfo(pb.GetBrokerClusterInfoRequest(), timeout=TIMEOUT)
            assert clusters.header == state.header()
            assert {(one.cluster_name, one.broker_name): dict_of(one) for one in clusters.broker_datas} == {
                tuple(key): group.addrs for key, group in state.tables.broker_addr_table.items()
            }

    def teardown(self) -> None:
        if self.server is not None:
            for reader in self.readers:
                reader.stop()
            hits = self.server.hits()
            self.loop.run_until_complete(self.server.stop(0.0))
            for reader in self.readers:
                reader.close()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            assert sum(count for count, _ in hits.values()), "nothing was answered by the engine itself"
        super().teardown()


def dict_of(group: Any) -> dict[int, str]:
    return {broker.broker_id: broker.broker_addr for broker in group.broker_addrs}


class TestKeptAnswers(KeptAnswersAgainstTables.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(
        max_examples=25, stateful_step_count=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
    )

    def setUp(self) -> None:
        require_native()
        super().setUp()


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
