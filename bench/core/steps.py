"""Route tables as a name server keeps them, what it does with a registration, and how long each step takes."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from namesrv_api.v1 import registration_service_pb2

from namesrv.app.writer import collecting, tune_garbage_collection
from namesrv.core.model import RegisterBrokerResult
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.slices import Sliced
from namesrv.core.state import NamesrvIdentity
from namesrv.grpc_api import registration as registration_module
from tests.support.virtual_clock import VirtualClock

WARM_UP_TOPICS = 100


def new_manager(clock: VirtualClock | None = None) -> RouteInfoManager:
    """Route tables without anything in them."""
    numbers = itertools.count()
    identity = NamesrvIdentity("bench", "000000000000001-00000000")
    return RouteInfoManager(identity, clock or VirtualClock(), lambda: f"channel-{next(numbers)}")


def register(manager: RouteInfoManager, data: bytes) -> Sliced[Any]:
    """What the server does with a registration's bytes."""
    request = registration_service_pb2.RegisterBrokerRequest.FromString(data)
    return collecting(read_and_registered(manager, request))


def read_and_registered(
    manager: RouteInfoManager, request: registration_service_pb2.RegisterBrokerRequest
) -> Sliced[RegisterBrokerResult]:
    """What RegistrationServicer does, with the same checks, but for waiting between reading and registering."""
    registration = registration_module.read_registration(request)
    if manager.reads_topics(registration):
        read = yield from registration_module.read_topics(request.topic_configs, manager.tables.topic_queue_table)
        registration = replace(registration, topic_configs=read)
    return (yield from manager.register_broker(registration))


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
    """How long each step takes, the one that ends them included: nothing else runs meanwhile."""
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
