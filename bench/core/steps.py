"""Route tables as a name server keeps them, what it does with changes, and how long that takes on each thread."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from namesrv_api.v1 import registration_service_pb2

from namesrv.app.worker import MIDDLE, YOUNG
from namesrv.app.writer import INLINE_TOPICS, tune_garbage_collection
from namesrv.core.model import RegisterBrokerResult
from namesrv.core.routes import Routes
from namesrv.core.state import NamesrvIdentity, RouteState
from namesrv.core.state_change import StateChange, apply_now
from namesrv.grpc_api import registration as registration_module
from tests.support.virtual_clock import VirtualClock

ResultT = TypeVar("ResultT")

WARM_UP_TOPICS = 100


def new_routes(clock: VirtualClock | None = None) -> Routes:
    """Route tables without anything in them."""
    numbers = itertools.count()
    identity = NamesrvIdentity("bench", "000000000000001-00000000")
    return Routes.of(RouteState(identity, clock or VirtualClock(), lambda: f"channel-{next(numbers)}"))


class ChangeTimes:
    """Makes changes as the table writer does, and adds up what they take on its thread and on the event loop.

    Here one thread does the work of both. So no time includes the pauses of breaths or the hop between threads.
    """

    def __init__(self) -> None:
        self.thread_millis = 0.0
        """Time on the writer's thread: reading, preparing and settling, and a garbage collection after each."""
        self.loop_millis: list[float] = []
        """Times for which the event loop was blocked: by commits, and by small changes as a whole."""

    @property
    def all_millis(self) -> float:
        """Time on both threads."""
        return self.thread_millis + sum(self.loop_millis)

    def on_thread(self, work: Callable[[], ResultT]) -> ResultT:
        """Does work, then collects garbage as the thread does after each job."""
        began = time.perf_counter()
        result = work()
        gc.collect(MIDDLE if gc.get_count()[MIDDLE] >= gc.get_threshold()[MIDDLE] else YOUNG)
        self.thread_millis += millis_since(began)
        return result

    def make(self, change: StateChange[ResultT]) -> ResultT:
        """Makes a change, a small one on the event loop alone."""
        if change.topics <= INLINE_TOPICS:
            return self._on_loop(lambda: apply_now(change))
        self.on_thread(change.prepare)
        result = self._on_loop(change.commit)
        self.on_thread(change.state.settle)
        return result

    def _on_loop(self, work: Callable[[], ResultT]) -> ResultT:
        began = time.perf_counter()
        result = work()
        self.loop_millis.append(millis_since(began))
        return result


def register(routes: Routes, data: bytes, times: ChangeTimes | None = None) -> RegisterBrokerResult:
    """Parses, checks and makes a registration from its bytes, as the server does."""
    times = times or ChangeTimes()
    parse = registration_service_pb2.RegisterBrokerRequest.FromString
    return read_and_register(routes, times.on_thread(lambda: parse(data)), times)


def read_and_register(
    routes: Routes, request: registration_service_pb2.RegisterBrokerRequest, times: ChangeTimes
) -> RegisterBrokerResult:
    """Checks and makes a registration, as RegistrationServicer does."""
    registration = registration_module.read_registration(request)
    if routes.registrations.reads_topics(registration):
        known = routes.state.tables.topic_queue_table
        topics = times.on_thread(lambda: registration_module.read_topics(request.topic_configs, known))
        registration = replace(registration, topic_configs=topics)
    return times.make(routes.registrations.register_broker(registration))


@contextmanager
def frozen() -> Iterator[None]:
    """The collector as ``namesrv serve`` sets it."""
    thresholds = gc.get_threshold()
    tune_garbage_collection()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def step_millis(steps: Iterable[object]) -> Iterator[float]:
    """How long each step takes, the one that ends them included."""
    iterator = iter(steps)
    ended = False
    while not ended:
        began = time.perf_counter()
        try:
            next(iterator)
        except StopIteration:
            ended = True
        yield millis_since(began)


def millis_since(began: float) -> float:
    """Milliseconds since a time of ``time.perf_counter``."""
    return (time.perf_counter() - began) * 1000
