"""Looks a topic up at several name servers again and again, as a service config says.

Usage: balanced.py FILE HOST:PORT,HOST:PORT... TOPIC

For each line of standard input it prints the calls since the line before: ``{"answers": {EPOCH: number of answers},
"failures": [...]}``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path

import grpc
from namesrv_api.v1 import route_service_pb2, route_service_pb2_grpc

CALLERS = 2
KEEPALIVE = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
]
MOST_FAILURES = 10
"""Bounds the list where every call fails."""


class Tally:
    """The calls since the last line; the callers' threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers = Counter[str]()
        self._failures: list[str] = []

    def call_forever(self, routes: route_service_pb2_grpc.RouteServiceStub, topic: str) -> None:
        """Makes one call after the other."""
        while True:
            try:
                answer = routes.GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic=topic))
            except grpc.RpcError as error:
                with self._lock:
                    self._failures[MOST_FAILURES - 1 :] = [f"{error.code().name}: {error.details()}"]
            else:
                with self._lock:
                    self._answers[answer.header.epoch] += 1

    def taken(self) -> str:
        """Returns the calls as JSON, and begins anew."""
        with self._lock:
            text = json.dumps({"answers": self._answers, "failures": self._failures})
            self._answers, self._failures = Counter(), []
        return text


def main(file: str, endpoints: str, topic: str) -> None:
    options = [("grpc.service_config", Path(file).read_text(encoding="utf-8")), *KEEPALIVE]
    with grpc.insecure_channel(f"ipv4:{endpoints}", options) as connections:
        routes, tally = route_service_pb2_grpc.RouteServiceStub(connections), Tally()
        for _ in range(CALLERS):
            threading.Thread(target=tally.call_forever, args=(routes, topic), daemon=True).start()
        for _ in sys.stdin:
            sys.stdout.write(f"{tally.taken()}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
