"""Costs of the route tables without gRPC: ``python -m bench.core``.

Each round of each table runs in a fresh process, so that memory and garbage collection start alike. ``--walk``
prints the modules that a registration and a lookup enter in a real server.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import grpc
from namesrv_api.v1 import registration_service_pb2, route_service_pb2
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from bench.figures import Sample, parser, report, summarise
from bench.workload import Profile, registration, topic_name
from namesrv.app.worker import MIDDLE, YOUNG
from namesrv.app.writer import INLINE_TOPICS, tune_garbage_collection
from namesrv.core.registrations import BrokerRegistration, UnreadTopics
from namesrv.core.state import NamesrvIdentity, RouteState, StateChange
from namesrv.core.tables import tag, varint
from namesrv.grpc_api import registration as registration_module
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv_common.process.logs import configure_logs
from tests.support.virtual_clock import VirtualClock

ResultT = TypeVar("ResultT")
Figures = Iterator[tuple[str, str, float]]
"""Name, unit and value of each figure."""

_ROUTE_TAG = tag(route_service_pb2.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_PROFILES: tuple[Profile, ...] = (Profile(100_000, 1, 1), Profile(20_000, 1_000, 1), Profile(100_000, 1_000, 4))
_SMOKE_PROFILES = (Profile(50, 10, 2),)
_LOOKUPS = 200_000
_WARM_UP_TOPICS = 100
_MEBIBYTE = 1 << 20
_WALKS = 3
"""Periodic work enters modules, too, but not in each walk."""
_WALKED_TOPICS = 300
_WALK_SECONDS = 30.0


class ChangeTimes:
    """Makes changes as the table writer does, and adds up what they take on its thread and on the event loop.

    Here one thread does the work of both. So no time includes sleeps of yields or the hop between threads.
    """

    def __init__(self) -> None:
        self.thread_millis = 0.0
        """Time on the writer's thread: reading, preparing, and a garbage collection after each."""
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
        self.thread_millis += _millis_since(began)
        return result

    def make(self, change: StateChange[Any]) -> None:
        """Makes a change, a small one on the event loop alone."""
        is_small = change.topics <= INLINE_TOPICS
        if not is_small:
            self.on_thread(change.prepare)
        began = time.perf_counter()
        if is_small:
            change.prepare()
        change.commit()
        self.loop_millis.append(_millis_since(began))


def tables(profile: Profile, lookups: int) -> list[Sample]:
    """A table of one profile: filled, looked up in, streamed out, replaced, collected.

    Runs in this process, with the garbage collector as in ``namesrv serve``.
    """
    _register(_new_state(), registration(0, range(_WARM_UP_TOPICS)), ChangeTimes())
    tune_garbage_collection()
    state = _new_state()
    figures = itertools.chain(
        _registered("loading it", state, profile.registrations()),
        _lookups(state, profile, lookups),
        _snapshot(state),
        _registered("replacing all of it", state, profile.registrations(counter=2, changed=True)),
        _snapshot_let_go(state, profile.registrations(counter=3)),
        _collection(),
    )
    return [Sample(profile.name, *figure) for figure in figures]


def _registered(what: str, state: RouteState, registrations: Iterable[bytes]) -> Figures:
    times, memory = ChangeTimes(), _resident_bytes()
    with _collections() as pauses:
        for data in registrations:
            _register(state, data, times)
    yield f"{what}, all together", "s", times.all_millis / 1000
    yield f"{what}, longest commit", "ms", max(times.loop_millis)
    yield f"{what}, resident memory that it takes", "MiB", (_resident_bytes() - memory) / _MEBIBYTE
    yield f"{what}, longest garbage collection", "ms", max(pauses, default=0.0)


def _lookups(state: RouteState, profile: Profile, count: int) -> Figures:
    names = profile.topic_names(count)
    began = time.perf_counter()
    for topic in names:
        route = state.route(topic)
        assert route is not None
        b"".join((state.header_fragment(), _ROUTE_TAG, varint(len(route)), route))
    yield "one lookup, mean", "µs", _millis_since(began) / count * 1000


def _snapshot(state: RouteState) -> Figures:
    began = time.perf_counter()
    snapshot = state.snapshot()
    yield "taking a snapshot", "ms", _millis_since(began)
    blocked = list(_step_millis(snapshot.messages()))
    yield "its messages, all together", "ms", sum(blocked)
    yield "its messages, longest of them", "ms", max(blocked)


def _snapshot_let_go(state: RouteState, registrations: Iterable[bytes]) -> Figures:
    """A snapshot is released that holds all of its rows alone, because each has been replaced since."""
    snapshot = state.snapshot()
    for data in registrations:
        _register(state, data, ChangeTimes())
    began = time.perf_counter()
    del snapshot
    yield "letting a replaced snapshot go", "ms", _millis_since(began)


def _collection() -> Figures:
    gc.collect()  # what loading has left over is not part of the figure
    with _collections() as pauses:
        gc.collect()
    yield "full garbage collection", "ms", max(pauses)


@contextmanager
def _collections() -> Iterator[list[float]]:
    """Milliseconds of each garbage collection while the block runs."""
    pauses: list[float] = []
    began = [0.0]

    def on_collection(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            began[0] = time.perf_counter()
        else:
            pauses.append(_millis_since(began[0]))

    gc.callbacks.append(on_collection)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(on_collection)


def _new_state() -> RouteState:
    numbers = itertools.count()
    identity = NamesrvIdentity("bench", "000000000000001-00000000")
    return RouteState(identity, VirtualClock(), lambda: f"channel-{next(numbers)}")


def _register(state: RouteState, data: bytes, times: ChangeTimes) -> None:
    """Parses, checks and makes a registration from its bytes, as the server does."""
    request = times.on_thread(lambda: registration_service_pb2.RegisterBrokerRequest.FromString(data))
    read = registration_module.read_registration(request)
    known, configs = state.tables.topic_queue_table, request.topic_configs
    unread = UnreadTopics(lambda: len(configs), lambda: registration_module.read_topics(configs, known))
    change = BrokerRegistration(state, read, unread=unread)
    if change.topics_to_read:
        times.on_thread(change.read)
    times.make(change)


def _step_millis(steps: Iterable[object]) -> Iterator[float]:
    """How long each step takes, the one that ends them included."""
    iterator, ended = iter(steps), False
    while not ended:
        began = time.perf_counter()
        ended = next(iterator, _step_millis) is _step_millis
        yield _millis_since(began)


def _millis_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(profiles: Sequence[Profile], lookups: int, rounds: int) -> Iterator[Sample]:
    """Runs the tables in rounds, so that a slow minute of the machine touches all of them alike."""
    for _, profile in itertools.product(range(rounds), profiles):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            yield from process.submit(tables, profile, lookups).result()


async def walk() -> dict[str, set[str]]:
    """The modules that a registration, up to the message of a watch, and an uncached lookup enter in each walk."""
    flags = {"listen": "127.0.0.1:0", "warm_up_millis": 0, "shutdown_grace_millis": 100}
    server, stop = NamesrvServer(NamesrvSettings.load(None, flags), None), asyncio.Event()
    running = asyncio.create_task(server.run(stop))
    walks: dict[str, list[set[str]]] = {"registration": [], "lookup": []}
    try:
        async with asyncio.timeout(_WALK_SECONDS), grpc.aio.insecure_channel(str(server.endpoint)) as connection:
            await connection.channel_ready()
            registrations: Any = RegistrationServiceStub(connection)
            routes: Any = RouteServiceStub(connection)
            for number in range(_WALKS):
                topics = range(number * _WALKED_TOPICS, (number + 1) * _WALKED_TOPICS)
                names = [topic_name(topic) for topic in topics]
                watch = routes.WatchTopicRoutes(iter([route_service_pb2.WatchTopicRoutesRequest(topics=names)]))
                while not (await watch.read()).bookmark:
                    pass
                data = registration(number, topics)
                with _entered() as modules:
                    await registrations.RegisterBroker(registration_service_pb2.RegisterBrokerRequest.FromString(data))
                    while not (await watch.read()).bookmark:
                        pass
                walks["registration"].append(modules)
                with _entered() as modules:
                    await routes.GetTopicRoute(route_service_pb2.GetTopicRouteRequest(topic=names[0]))
                walks["lookup"].append(modules)
    finally:
        stop.set()
        await asyncio.wait_for(running, _WALK_SECONDS)
    return {call: set.intersection(*modules) for call, modules in walks.items()}


@contextmanager
def _entered() -> Iterator[set[str]]:
    """The modules of the name server whose functions this thread enters."""
    modules: set[str] = set()

    def enter(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith(("namesrv.", "namesrv_common.")):
            modules.add(name)

    sys.setprofile(enter)
    try:
        yield modules
    finally:
        sys.setprofile(None)


def profile_of(text: str) -> Profile:
    """The table that a text such as 1000000x10000x1 asks for."""
    return Profile(*map(int, text.split("x")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    options = parser("core", __doc__)
    options.add_argument("--walk", action="store_true", help="print the modules that calls enter, and measure nothing")
    options.add_argument("--tables", type=profile_of, help="a table of TOPICSxBROKERSxWIDTH, such as 1000000x10000x1")
    given = options.parse_args(arguments)
    if given.walk:
        configure_logs("text", "error")
        for call, modules in asyncio.run(walk()).items():
            print(f"{call}: {len(modules)} modules", *sorted(modules), sep="\n  ")
        return
    profiles, lookups, rounds = _PROFILES, _LOOKUPS, given.rounds
    if given.smoke:
        profiles, lookups, rounds = _SMOKE_PROFILES, 50, 1
    report(given, summarise(measure([given.tables] if given.tables else profiles, lookups, rounds)))


if __name__ == "__main__":
    main()
