"""A broker written in Go, without an agent, at a real name server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import registration_service_pb2 as pb

from tests.interop.programs import INSTALL_SECONDS, RUN_SECONDS, Programs, RunningProgram
from tests.interop.watch_lines import Bookmark
from tests.support.programs.processes import Client, NamesrvProcess, eventually

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

ADDR = "127.0.0.1:10911"
BROKER = ("go-broker", ADDR, "T1", "T2")


def check_broker_removed(watch: RunningProgram, reason: str) -> None:
    """Checks that a watch is told that both topics went with the broker, and why."""
    removals = {topic: change["removals"] for topic, change in Bookmark.next_of(watch).changes.items()}
    removal = {
        "cluster_name": "DefaultCluster",
        "broker_name": "go-broker",
        "broker_id": "0",
        "broker_addr": ADDR,
        "reason": f"REMOVAL_REASON_{reason}",
    }
    assert removals == {"T1": [removal], "T2": [removal]}


def test_a_broker_without_an_agent_registers_over_a_channel_and_unregisters_when_it_is_ended(
    go_programs: Programs, namesrv: NamesrvProcess, client: Client
) -> None:
    with go_programs.start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert broker.next_line()["event"]["opened"]["channel_id"]
        registered = broker.next_line()["registered"]
        assert registered["changed"] is True
        queried = broker.next_line()["data_version_queried"]
        assert queried["changed"] is False
        assert queried["data_version"]["counter"] == "1"
        assert (client.addrs("T1"), client.addrs("T2")) == ({0: ADDR}, {0: ADDR})
        with go_programs.start("watch", str(namesrv.endpoint), "T*") as watch:
            assert Bookmark.next_of(watch).changes.keys() == {"T1", "T2"}
            broker.terminate()
            assert broker.next_line()["unregistered"]["removed"] is True
            assert broker.end() == (0, "")
            check_broker_removed(watch, "UNREGISTERED")
        assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_killed_broker_without_an_agent_leaves_the_routes_by_the_end_of_its_channel(
    go_programs: Programs, namesrv: NamesrvProcess, client: Client
) -> None:
    with go_programs.start("broker", str(namesrv.endpoint), *BROKER) as broker:
        assert eventually(lambda: client.addrs("T1")) == {0: ADDR}
        with go_programs.start("watch", str(namesrv.endpoint), "T*") as watch:
            assert Bookmark.next_of(watch).changes.keys() == {"T1", "T2"}
            broker.kill()
            check_broker_removed(watch, "CHANNEL_CLOSED")
        assert (client.route("T1"), client.route("T2")) == (None, None)


def test_a_broker_without_an_agent_ends_with_the_reason_when_it_is_refused(
    go_programs: Programs, namesrv: NamesrvProcess
) -> None:
    with go_programs.start("broker", str(namesrv.endpoint), "go\tbroker", *BROKER[1:]) as broker:
        assert "opened" in broker.next_line()["event"]
        code, error = broker.end()
    assert (code, error.split(":")[0]) == (1, "InvalidArgument INVALID_FIELD")


class OrderingNameServer:
    """Changes ordered topics when it has had the first registration; ends the channel when it has had that."""

    def __init__(self) -> None:
        self.registrations: list[pb.RegisterBrokerRequest] = []
        self._arrived = threading.Semaphore(0)

    def open_channel(self, _request: Message, _context: grpc.ServicerContext) -> Iterator[pb.OpenChannelResponse]:
        yield pb.OpenChannelResponse(opened=pb.ChannelOpened(channel_id="channel-1"))
        assert self._arrived.acquire(timeout=RUN_SECONDS)
        yield pb.OpenChannelResponse(order_topic_config_changed=pb.OrderTopicConfigChanged())
        assert self._arrived.acquire(timeout=RUN_SECONDS)
        yield pb.OpenChannelResponse(closing=pb.ChannelClosing(reason=pb.ChannelClosing.REASON_SHUTDOWN))

    def register_broker(
        self, request: pb.RegisterBrokerRequest, _context: grpc.ServicerContext
    ) -> pb.RegisterBrokerResponse:
        self.registrations.append(request)
        self._arrived.release()
        return pb.RegisterBrokerResponse(generation=len(self.registrations))

    def query_data_version(self, _request: Message, _context: grpc.ServicerContext) -> pb.QueryDataVersionResponse:
        return pb.QueryDataVersionResponse(changed=False)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serves on a free port; gives the endpoint."""
        handlers = {
            "OpenChannel": grpc.unary_stream_rpc_method_handler(
                self.open_channel, pb.OpenChannelRequest.FromString, pb.OpenChannelResponse.SerializeToString
            ),
            "RegisterBroker": grpc.unary_unary_rpc_method_handler(
                self.register_broker, pb.RegisterBrokerRequest.FromString, pb.RegisterBrokerResponse.SerializeToString
            ),
            "QueryDataVersion": grpc.unary_unary_rpc_method_handler(
                self.query_data_version,
                pb.QueryDataVersionRequest.FromString,
                pb.QueryDataVersionResponse.SerializeToString,
            ),
        }
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        service = grpc.method_handlers_generic_handler("namesrv_api.v1.RegistrationService", handlers)
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(grace=None).wait()


def test_a_broker_without_an_agent_registers_again_when_ordered_topics_change(go_programs: Programs) -> None:
    ordering = OrderingNameServer()
    with ordering.serve() as endpoint, go_programs.start("broker", endpoint, *BROKER) as broker:
        code, _ = broker.end()
    assert code == 1
    first, second = ordering.registrations
    assert first == second
    assert first.channel_id == "channel-1"
    assert [topic.topic for topic in first.topic_configs] == ["T1", "T2"]
