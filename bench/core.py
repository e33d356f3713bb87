"""Costs of the route tables without gRPC: ``python -m bench.core``.

Every round of every workload runs in a fresh process, so that memory and garbage collection start alike.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from namesrv_api.v1 import registration_service_pb2, route_service_pb2

from bench.figures import Sample, machine_line, progress, summarise, table, write_json
from bench.probes.pauses import GENERATIONS, Pauses
from bench.workload import Profile, registration
from namesrv.core.records.fragments import tag, varint
from namesrv.core.records.rows import RegisterBrokerResult
from namesrv.core.routes.route_info_manager import RouteInfoManager
from namesrv.core.routes.route_state import BROKER_CHANNEL_EXPIRED_TIME, NamesrvIdentity
from namesrv.core.slices import Sliced, run_sync
from namesrv.garbage_collection import collecting, tune_garbage_collection
from namesrv.server.services.registration import requests
from support.virtual_clock import VirtualClock

_ROUTE_TAG = tag(route_service_pb2.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_WARM_UP_TOPICS = 100
_BETWEEN_BROKERS_SECONDS = 0.001
_MEBIBYTE = 1024 * 1024


class Sizes(NamedTuple):
    """How much of everything. The defaults are what reports are about; the test uses tiny ones."""

    registration_topics: int = 10_000
    slice_topics: int = 100_000
    expiry_brokers: int = 10_000
    expiring_brokers: int = 1_000
    profiles: tuple[Profile, ...] = (Profile(20_000, 1_000, 1), Profile(100_000, 1_000, 4))
    lookups: int = 200_000


def registrations(sizes: Sizes) -> list[Sample]:
    """One broker's whole table: for the first time, again, with one change, with everything changed."""
    topics = range(sizes.registration_topics)
    requests = {
        "first": registration(0, topics),
        "unchanged": registration(0, topics),
        "one topic changed": registration(0, topics, counter=2, changed=range(1)),
        "all topics changed": registration(0, topics, counter=3, changed=range(1, sizes.registration_topics)),
    }
    run_sync(register(_manager(), registration(0, range(_WARM_UP_TOPICS))))
    manager = _manager()
    workload = f"full registration of {sizes.registration_topics:,} topics"
    samples = []
    with _frozen():
        for name, request in requests.items():
            began = time.perf_counter()
            run_sync(register(manager, request))
            samples.append(Sample(workload, name, "ms", _millis_since(began)))
    assert manager.revision == 3, "the unchanged registration changes nothing, the others do"
    return samples


def slices(sizes: Sizes) -> list[Sample]:
    """How long a very large registration holds up everything else: parsing it, and in a step."""
    topics = range(sizes.slice_topics)
    requests = {
        "first": registration(0, topics),
        "changed": registration(0, topics, counter=2, changed=topics),
    }
    run_sync(register(_manager(), registration(0, range(_WARM_UP_TOPICS))))
    manager = _manager()
    samples = []
    with _frozen():
        for name, data in requests.items():
            workload = f"one registration of {sizes.slice_topics:,} topics, {name}"
            pauses = Pauses()
            with pauses:
                began = time.perf_counter()
                request = registration_service_pb2.RegisterBrokerRequest.FromString(data)
                parse = _millis_since(began)
                held_up = list(_step_millis(collecting(_read_and_registered(manager, request))))
            samples += [
                Sample(workload, "parsing the message", "ms", parse),
                Sample(workload, "longest step", "ms", max(held_up)),
                Sample(workload, "longest time that the event loop is held up", "ms", max(parse, *held_up)),
                Sample(workload, "longest garbage collection meanwhile", "ms", pauses.longest_millis),
                Sample(workload, "all together", "ms", parse + sum(held_up)),
            ]
    return samples


def expiry(sizes: Sizes) -> list[Sample]:
    """Many brokers fall silent at once while the others live on. None has topics.

    All registered within seconds, as after a restart of the name server, so all first deadlines come up in one scan.
    """
    clock = VirtualClock()
    manager = _manager(clock)
    brokers = [_without_own_timeout(broker) for broker in range(sizes.expiry_brokers)]
    identities = []
    for request in brokers:
        clock.seconds += _BETWEEN_BROKERS_SECONDS  # equal deadlines would be sorted by name, which is slow and rare
        run_sync(_read_and_registered(manager, request))
        identities.append(requests.broker_identity(request.broker))
    all_registered = clock.seconds
    clock.seconds += BROKER_CHANNEL_EXPIRED_TIME / 2
    for identity in identities[sizes.expiring_brokers :]:
        clock.seconds += _BETWEEN_BROKERS_SECONDS
        manager.broker_heartbeat(*identity)
    clock.seconds = all_registered + BROKER_CHANNEL_EXPIRED_TIME + 1
    with _frozen():
        held_up = list(_step_millis(collecting(manager.scan_not_active_broker())))
    left = len(manager.tables.broker_live_table)
    assert left == sizes.expiry_brokers - sizes.expiring_brokers, f"{left} brokers are left"
    workload = f"expiry of {sizes.expiring_brokers:,} of {sizes.expiry_brokers:,} brokers"
    return [
        Sample(workload, "all together", "ms", sum(held_up)),
        Sample(workload, "longest time that the event loop is held up", "ms", max(held_up)),
    ]


def tables(sizes: Sizes, profile: Profile) -> list[Sample]:
    """A table of one profile: loading it, looking up in it, streaming it out, and what collectors make of it."""
    run_sync(register(_manager(), registration(0, range(_WARM_UP_TOPICS))))
    manager = _manager()
    with _frozen():
        figures = [
            *_registered("loading it", manager, profile.registrations()),
            *_lookups(manager, profile, sizes.lookups),
            *_snapshot(manager),
            *_topic_names(manager),
            *_registered("replacing all of it", manager, profile.registrations(counter=2, changed=True)),
            *_collections(),
        ]
    return [Sample(profile.name, *figure) for figure in figures]


def register(manager: RouteInfoManager, data: bytes) -> Sliced[Any]:
    """What the server does with a registration's bytes."""
    request = registration_service_pb2.RegisterBrokerRequest.FromString(data)
    return collecting(_read_and_registered(manager, request))


def measure(sizes: Sizes, rounds: int, *, fresh_processes: bool = True) -> list[Sample]:
    """Runs the workloads in rounds, so that a slow minute of the machine touches all of them alike."""
    workloads: list[tuple[Callable[..., list[Sample]], tuple[Any, ...]]] = [
        (registrations, (sizes,)),
        (slices, (sizes,)),
        (expiry, (sizes,)),
        *((tables, (sizes, profile)) for profile in sizes.profiles),
    ]
    samples: list[Sample] = []
    for number, (workload, arguments) in itertools.product(range(1, rounds + 1), workloads):
        progress(f"core: round {number} of {rounds}, {workload.__name__}")
        if fresh_processes:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                samples += process.submit(workload, *arguments).result()
        else:
            samples += workload(*arguments)
    return samples


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, writes the JSON file."""
    parser = argparse.ArgumentParser(prog="python -m bench.core", description="Measures the route tables without gRPC.")
    parser.add_argument("--json", type=Path, help="file for every value of every round")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--topics", type=int, help="for a trial: tiny tables with so many topics, in this process")
    options = parser.parse_args(arguments)
    sizes = tiny(options.topics) if options.topics else Sizes()
    figures = summarise(measure(sizes, options.rounds, fresh_processes=not options.topics))
    print(machine_line())
    place = "this process" if options.topics else "a fresh process each"
    print(f"Route tables without gRPC: {options.rounds} rounds, {place}.")
    print(table(figures))
    if options.json:
        write_json(options.json, figures, rounds=options.rounds)


def tiny(topics: int) -> Sizes:
    """Everything with so many topics and a few brokers: shows that it runs, and no more."""
    return Sizes(topics, topics, 20, 2, (Profile(topics, 10, 2),), topics)


def _manager(clock: VirtualClock | None = None) -> RouteInfoManager:
    numbers = itertools.count()
    identity = NamesrvIdentity("bench", "000000000000001-00000000")
    return RouteInfoManager(identity, clock or VirtualClock(), lambda: f"channel-{next(numbers)}")


def _read_and_registered(
    manager: RouteInfoManager, request: registration_service_pb2.RegisterBrokerRequest
) -> Sliced[RegisterBrokerResult]:
    """What RegistrationServicer does, with the same checks, but for waiting between reading and registering."""
    registration = requests.registration(request)
    if manager.reads_topics(registration):
        read = yield from requests.read_topics(request.topic_configs, manager.tables.topic_queue_table)
        registration = replace(registration, topic_configs=read)
    return (yield from manager.register_broker(registration))


def _without_own_timeout(broker: int) -> registration_service_pb2.RegisterBrokerRequest:
    request = registration_service_pb2.RegisterBrokerRequest.FromString(registration(broker, range(0)))
    request.ClearField("heartbeat_timeout_millis")
    return request


def _registered(
    what: str, manager: RouteInfoManager, registrations: Iterable[bytes]
) -> Iterator[tuple[str, str, float]]:
    pauses = Pauses()
    seconds = 0.0
    memory = _resident_bytes()
    with pauses:  # also while the next request is made: what may be due then is due to the tables
        for data in registrations:
            began = time.perf_counter()
            run_sync(register(manager, data))
            seconds += time.perf_counter() - began
    yield f"{what}, all together", "s", seconds
    yield f"{what}, resident memory that it takes", "MiB", (_resident_bytes() - memory) / _MEBIBYTE
    yield f"{what}, longest garbage collection", "ms", pauses.longest_millis
    for generation, runs in zip(GENERATIONS, pauses.runs, strict=True):
        yield f"{what}, {generation} garbage collections", "runs", runs


def _lookups(manager: RouteInfoManager, profile: Profile, count: int) -> Iterator[tuple[str, str, float]]:
    names = profile.topic_names(count)
    began = time.perf_counter()
    for topic in names:
        route = manager.pickup_topic_route_data(topic)
        assert route is not None
        b"".join((manager.header_fragment(), _ROUTE_TAG, varint(len(route)), route))
    seconds = time.perf_counter() - began
    yield "one lookup, mean", "µs", seconds / count * 1_000_000
    yield "lookups per second", "1/s", count / seconds


def _snapshot(manager: RouteInfoManager) -> Iterator[tuple[str, str, float]]:
    began = time.perf_counter()
    snapshot = manager.snapshot()
    yield "taking a snapshot", "ms", _millis_since(began)
    held_up = list(_step_millis(snapshot.messages()))
    yield "its messages, all together", "ms", sum(held_up)
    yield "its messages, longest of them", "ms", max(held_up)


def _topic_names(manager: RouteInfoManager) -> Iterator[tuple[str, str, float]]:
    held_up = list(_step_millis(manager.topic_lists.all_after("", 1_000)))
    yield "first page of topic names after a change, all together", "ms", sum(held_up)
    yield "first page of topic names after a change, longest step", "ms", max(held_up)
    yield "first page of topic names again", "ms", sum(_step_millis(manager.topic_lists.all_after("", 1_000)))


def _collections() -> Iterator[tuple[str, str, float]]:
    yield "full garbage collection", "ms", _full_collection_millis()
    gc.freeze()
    yield "full garbage collection after gc.freeze()", "ms", _full_collection_millis()


def _full_collection_millis() -> float:
    gc.collect()  # what loading has left over is not part of the figure
    pauses = Pauses()
    with pauses:
        gc.collect()
    return pauses.longest_millis


@contextmanager
def _frozen() -> Iterator[None]:
    """The collector as ``namesrv serve`` sets it."""
    thresholds = gc.get_threshold()
    tune_garbage_collection()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _step_millis(steps: Iterable[object]) -> Iterator[float]:
    """How long each step takes, the one that ends them included: nothing else runs meanwhile."""
    iterator = iter(steps)
    ended = False
    while not ended:
        began = time.perf_counter()
        try:
            next(iterator)
        except StopIteration:
            ended = True
        yield _millis_since(began)


def _millis_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
