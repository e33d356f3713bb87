"""Costs of the route tables without gRPC: ``python -m bench.core``.

Each round of each workload runs in a fresh process, so that memory and garbage collection start alike. ``--walk``
prints the modules that a registration and a lookup enter in a real server.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import grpc
from namesrv_api.v1 import registration_service_pb2, route_service_pb2
from namesrv_api.v1.registration_service_pb2_grpc import RegistrationServiceStub
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub

from bench.figures import Sample, parser, report, summarise
from bench.workload import SEED, Profile, registration, topic_name
from namesrv.app.worker import MIDDLE, YOUNG
from namesrv.app.writer import INLINE_TOPICS, tune_garbage_collection
from namesrv.core.encoding import tag, varint
from namesrv.core.heartbeats import Heartbeats
from namesrv.core.model import BrokerKey, RegisterBrokerResult, Registration
from namesrv.core.registrations import BrokerRegistration, UnreadTopics
from namesrv.core.removals import scan_not_active_broker
from namesrv.core.slices import run_steps
from namesrv.core.state import BROKER_CHANNEL_EXPIRED_TIME, NamesrvIdentity, RouteState, StateChange
from namesrv.core.watch.hub import RouteWatch, WatchHub
from namesrv.core.watch.subscription import Subscription
from namesrv.grpc_api import registration as registration_module
from namesrv.remoting.bodies import read_registration
from namesrv.server.server import NamesrvServer
from namesrv.settings import NamesrvSettings
from namesrv_common.process.logs import configure_logs
from tests.support.state_changes import apply_now
from tests.support.virtual_clock import VirtualClock

ResultT = TypeVar("ResultT")
Figures = Iterator[tuple[str, str, float]]
"""Name, unit and value of each figure."""

_ROUTE_TAG = tag(route_service_pb2.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_WARM_UP_TOPICS = 100
_BETWEEN_BROKERS_SECONDS = 0.001
_MEBIBYTE = 1 << 20
_WALKS = 3
"""Periodic work enters modules, too, but not in each walk."""
_WALKED_TOPICS = 300
_WALK_SECONDS = 30.0


class Sizes(NamedTuple):
    """How much of everything."""

    topics: int = 100_000
    """Topics of one large registration."""
    brokers: int = 10_000
    """Brokers. A tenth of them expires at once."""
    profiles: tuple[Profile, ...] = (Profile(20_000, 1_000, 1), Profile(100_000, 1_000, 4))
    lookups: int = 200_000
    mapped_queues: int = 50_000
    watches: int = 100
    watched_topics: int = 10_000
    """Of each watch."""


SMOKE = Sizes(50, 20, (Profile(50, 10, 2),), 50, 50, 3, 50)


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

    def make(self, change: StateChange[ResultT]) -> ResultT:
        """Makes a change, a small one on the event loop alone."""
        if change.topics <= INLINE_TOPICS:
            return self._on_loop(lambda: apply_now(change))
        self.on_thread(change.prepare)
        return self._on_loop(change.commit)

    def _on_loop(self, work: Callable[[], ResultT]) -> ResultT:
        began = time.perf_counter()
        result = work()
        self.loop_millis.append(_millis_since(began))
        return result


def large_registrations(sizes: Sizes) -> Iterator[Sample]:
    """A large registration: how long it takes, and how long it blocks the event loop."""
    topics, state = range(sizes.topics), _new_state()
    for name, counter in (("first", 1), ("changed", 2)):
        workload = f"one registration of {sizes.topics:,} topics, {name}"
        data, times = registration(0, topics, counter, topics if name == "changed" else range(0)), ChangeTimes()
        _register(state, data, times)
        yield Sample(workload, "longest commit", "ms", max(times.loop_millis))
        yield Sample(workload, "all together", "ms", times.all_millis)


def static_topic(sizes: Sizes) -> Iterator[Sample]:
    """The mapping of one static topic, as RocketMQ writes and registers it."""
    state = _new_state()
    for name, shift in (("first", 0), ("moved", 1)):
        workload = f"one static topic of {sizes.mapped_queues:,} queues, {name}"
        data, times = _static_topic_body(sizes.mapped_queues, shift), ChangeTimes()
        known = state.tables.topic_queue_table
        body = times.on_thread(lambda data=data, known=known: read_registration(data, 0, known))  # type: ignore[misc]
        broker = BrokerKey("cluster", "broker"), 0, "10.0.0.1:10911", body.data_version, body.topic_configs
        times.make(BrokerRegistration(state, Registration(*broker, topic_by_topic=True, mappings=body.mappings)))
        yield Sample(workload, "longest commit", "ms", max(times.loop_millis))
        yield Sample(workload, "all together", "ms", times.all_millis)


def expiry(sizes: Sizes) -> Iterator[Sample]:
    """A tenth of the brokers fall silent at once. All registered within seconds, so one scan sees all deadlines."""
    clock = VirtualClock()
    state, identities, expiring = _new_state(clock), [], sizes.brokers // 10
    for broker in range(sizes.brokers):
        clock.seconds += _BETWEEN_BROKERS_SECONDS  # equal deadlines would be sorted by name, which is slow and rare
        request = registration_service_pb2.RegisterBrokerRequest.FromString(registration(broker, range(0)))
        request.ClearField("heartbeat_timeout_millis")
        _read_and_register(state, request, ChangeTimes())
        identities.append(registration_module.broker_identity(request.broker))
    all_registered = clock.seconds
    clock.seconds += BROKER_CHANNEL_EXPIRED_TIME / 2
    for identity in identities[expiring:]:
        clock.seconds += _BETWEEN_BROKERS_SECONDS
        Heartbeats(state).broker_heartbeat(*identity)
    clock.seconds = all_registered + BROKER_CHANNEL_EXPIRED_TIME + 1
    times = ChangeTimes()
    changes = scan_not_active_broker(state)
    while (change := times.on_thread(lambda: next(changes, None))) is not None:
        times.make(change)
    left = len(state.tables.broker_live_table)
    assert left == sizes.brokers - expiring, f"{left} brokers are left"
    workload = f"expiry of {expiring:,} of {sizes.brokers:,} brokers"
    yield Sample(workload, "all together", "ms", times.all_millis)
    yield Sample(workload, "longest commit", "ms", max(times.loop_millis))


def tables(sizes: Sizes, profile: Profile) -> Iterator[Sample]:
    """A table of one profile: filled, looked up in, streamed out, replaced, watched, collected."""
    state = _new_state()
    figures = itertools.chain(
        _registered("loading it", state, profile.registrations()),
        _lookups(state, profile, sizes.lookups),
        _snapshot(state),
        _registered("replacing all of it", state, profile.registrations(counter=2, changed=True)),
        _snapshot_let_go(state, profile.registrations(counter=3)),
        _watches_ended(state, profile, sizes),
        _collection(),
    )
    return (Sample(profile.name, *figure) for figure in figures)


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


def _watches_ended(state: RouteState, profile: Profile, sizes: Sizes) -> Figures:
    """Watches that have read nothing end together, as those of a process that is killed."""
    rng, count = random.Random(SEED), min(sizes.watched_topics, profile.topics)
    hub = WatchHub(state, max_pending=sizes.watches * count)
    watches: list[RouteWatch] = []
    for _ in range(sizes.watches):
        names = frozenset(topic_name(number) for number in rng.sample(range(profile.topics), count))
        watches.append(RouteWatch(lambda: None, Subscription(names)))
        run_steps(hub.join(watches[-1]))
        run_steps(hub.fill(watches[-1]))
    blocked: list[float] = []
    for watch in watches:
        began = time.perf_counter()
        steps = hub.close(watch)
        blocked += (_millis_since(began), *_step_millis(steps))
    yield f"ending {sizes.watches:,} watches of {count:,} topics, longest step", "ms", max(blocked)


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


def _new_state(clock: VirtualClock | None = None) -> RouteState:
    numbers = itertools.count()
    identity = NamesrvIdentity("bench", "000000000000001-00000000")
    return RouteState(identity, clock or VirtualClock(), lambda: f"channel-{next(numbers)}")


def _register(state: RouteState, data: bytes, times: ChangeTimes) -> RegisterBrokerResult:
    """Parses, checks and makes a registration from its bytes, as the server does."""
    parse = registration_service_pb2.RegisterBrokerRequest.FromString
    return _read_and_register(state, times.on_thread(lambda: parse(data)), times)


def _read_and_register(
    state: RouteState, request: registration_service_pb2.RegisterBrokerRequest, times: ChangeTimes
) -> RegisterBrokerResult:
    read = registration_module.read_registration(request)
    known, configs = state.tables.topic_queue_table, request.topic_configs
    unread = UnreadTopics(lambda: len(configs), lambda: registration_module.read_topics(configs, known))
    change = BrokerRegistration(state, read, unread=unread)
    if change.topics_to_read:
        times.on_thread(change.read)
    return times.make(change)


def _static_topic_body(queues: int, shift: int) -> bytes:
    """The body of REGISTER_BROKER with one static topic. Numbers as keys have no quotes, as fastjson has it."""
    ids = ",".join(f"{queue}:{queue + shift}" for queue in range(queues))
    mapping = f'{{"bname":"broker","currIdMap":{{{ids}}},"dirty":false,"epoch":1,"scope":"__global__","topic":"static"'
    topic = '"perm":6,"readQueueNums":8,"topicName":"static","topicSysFlag":0,"writeQueueNums":8'
    return (
        f'{{"topicConfigSerializeWrapper":{{"topicConfigTable":{{"static":{{{topic}}}}},'
        f'"topicQueueMappingInfoMap":{{"static":{mapping},"totalQueues":{queues}}}}}}}}}'
    ).encode()


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


def run(workload: Callable[..., Iterator[Sample]], *arguments: Any) -> list[Sample]:
    """Runs a workload in this process, with the garbage collector as in ``namesrv serve``."""
    _register(_new_state(), registration(0, range(_WARM_UP_TOPICS)), ChangeTimes())
    tune_garbage_collection()
    return list(workload(*arguments))


def measure(sizes: Sizes, rounds: int) -> Iterator[Sample]:
    """Runs the workloads in rounds, so that a slow minute of the machine touches all of them alike."""
    workloads: list[tuple[Any, ...]] = [(one, sizes) for one in (large_registrations, static_topic, expiry)]
    workloads += [(tables, sizes, profile) for profile in sizes.profiles]
    for _, workload in itertools.product(range(rounds), workloads):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            yield from process.submit(run, *workload).result()


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
    sizes = SMOKE if given.smoke else Sizes()
    if given.tables:
        sizes = sizes._replace(profiles=(given.tables,))
    report(given, summarise(measure(sizes, 1 if given.smoke else given.rounds)))


if __name__ == "__main__":
    main()
