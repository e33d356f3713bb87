"""Lookups at a fixed rate, whatever else goes on."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from typing import Any, Self

import grpc
from namesrv_api.v1 import route_service_pb2

from bench.load import CLIENT_OPTIONS, GET_TOPIC_ROUTE
from bench.workload import Profile

CALLS_PER_SECOND = 500
"""Modest: a tenth of what an engine in Python would do."""

_CALL_SECONDS = 30.0
_IN_FLIGHT = 100
"""Calls under way at most; those that are due wait."""

_DIFFERENT_TOPICS = 10_000


class SteadyLookups:
    """Calls GetTopicRoute in a thread and on a connection of its own for as long as the context lasts.

    A call is sent when it is due even if those before it are not answered, and its latency counts from when it was due:
    a server that makes clients wait is not spared the calls that would have come meanwhile.
    """

    def __init__(self, target: str, profile: Profile) -> None:
        self._target = target
        self._requests = [
            route_service_pb2.GetTopicRouteRequest(topic=topic).SerializeToString()
            for topic in profile.topic_names(_DIFFERENT_TOPICS)
        ]
        self._latencies: list[float] = []
        self._failures: set[str] = set()
        self._free = threading.Semaphore(_IN_FLIGHT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send_calls, name="lookups", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_CALL_SECONDS)

    def take(self) -> list[float]:
        """Latencies of the calls that were answered since this was called last, in seconds and ascending order.

        Raises:
            AssertionError: A call failed.
        """
        latencies, self._latencies = self._latencies, []
        assert not self._failures, f"lookups failed: {self._failures}"
        return sorted(latencies)

    def _send_calls(self) -> None:
        with grpc.insecure_channel(self._target, CLIENT_OPTIONS) as channel:
            grpc.channel_ready_future(channel).result(_CALL_SECONDS)
            lookup = channel.unary_unary(GET_TOPIC_ROUTE, None, None)
            due = time.perf_counter()
            for request in itertools.cycle(self._requests):
                due += 1 / CALLS_PER_SECOND
                if self._stop.wait(max(0.0, due - time.perf_counter())):
                    return
                self._free.acquire(timeout=_CALL_SECONDS)
                lookup.future(request, timeout=_CALL_SECONDS).add_done_callback(partial(self._on_answer, due))

    def _on_answer(self, due: float, call: Any) -> None:
        self._free.release()
        self._latencies.append(time.perf_counter() - due)
        if call.code() not in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND):  # before it is loaded, there is no route
            self._failures.add(f"{call.code().name}: {call.details()}")
