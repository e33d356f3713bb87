"""The peer: what one writes in an afternoon. A synchronous grpcio server, dictionaries of messages, one lock.

It answers the same two calls with the same content, checks nothing, and never removes a broker.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from namesrv_api.v1 import registration_service_pb2, route_data_pb2, route_service_pb2
from namesrv_api.v1.registration_service_pb2_grpc import (
    RegistrationServiceServicer,
    add_RegistrationServiceServicer_to_server,
)
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceServicer, add_RouteServiceServicer_to_server

THREADS = 8


class NaiveNamesrv(RegistrationServiceServicer, RouteServiceServicer):
    """Both services over the same dictionaries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision = 0
        self._brokers: dict[str, route_data_pb2.BrokerData] = {}
        self._topics: dict[str, dict[str, route_data_pb2.QueueData]] = {}

    def RegisterBroker(  # noqa: N802 - calls have the names of the wire contract
        self, request: registration_service_pb2.RegisterBrokerRequest, context: Any
    ) -> registration_service_pb2.RegisterBrokerResponse:
        """Puts a broker and its topics into the dictionaries."""
        del context
        broker = request.broker
        with self._lock:
            self._revision += 1
            data = route_data_pb2.BrokerData(cluster_name=broker.cluster_name, broker_name=broker.broker_name)
            data.broker_addrs.add(broker_id=broker.broker_id, broker_addr=broker.broker_addr)
            self._brokers[broker.broker_name] = data
            for config in request.topic_configs:
                self._topics.setdefault(config.topic, {})[broker.broker_name] = route_data_pb2.QueueData(
                    broker_name=broker.broker_name,
                    cluster_name=broker.cluster_name,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=config.perm,
                    topic_sys_flag=config.topic_sys_flag,
                )
            return registration_service_pb2.RegisterBrokerResponse(header=self._header(), changed=True)

    def GetTopicRoute(  # noqa: N802
        self, request: route_service_pb2.GetTopicRouteRequest, context: grpc.ServicerContext
    ) -> route_service_pb2.GetTopicRouteResponse:
        """Builds the route of a topic."""
        with self._lock:
            queues = self._topics.get(request.topic)
            if queues is None:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no topic {request.topic}")
                raise AssertionError("abort has raised")
            route = route_data_pb2.TopicRouteData(
                queue_datas=queues.values(), broker_datas=[self._brokers[name] for name in queues]
            )
            return route_service_pb2.GetTopicRouteResponse(header=self._header(), route=route)

    def _header(self) -> route_data_pb2.NamesrvHeader:
        return route_data_pb2.NamesrvHeader(
            namesrv_name="127.0.0.1:9876", epoch="000000000000001-00000000", revision=self._revision
        )


def main() -> None:
    """Serves on a free port of loopback, which a line of JSON on standard error names, until SIGTERM."""
    server = grpc.server(ThreadPoolExecutor(THREADS), options=[("grpc.so_reuseport", 0)])
    # For the type checker all calls are abstract; in fact the others answer UNIMPLEMENTED.
    namesrv = NaiveNamesrv()  # type: ignore[abstract]
    add_RegistrationServiceServicer_to_server(namesrv, server)
    add_RouteServiceServicer_to_server(namesrv, server)
    port = server.add_insecure_port("127.0.0.1:0")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    server.start()
    print(json.dumps({"event": "naive_started", "listen": f"127.0.0.1:{port}"}), file=sys.stderr, flush=True)
    stop.wait()
    server.stop(1).wait(5)


if __name__ == "__main__":
    main()
