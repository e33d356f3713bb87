"""Whole tables: filled, looked up in, streamed out, watched, collected."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from namesrv_api.v1 import route_service_pb2

from bench.core.sizes import Sizes
from bench.core.steps import WARM_UP_TOPICS, ChangeTimes, frozen, millis_since, new_routes, register, step_millis
from bench.figures import Sample
from bench.probes.pauses import GENERATIONS, Pauses
from bench.workload import SEED, Profile, registration, topic_name
from namesrv.app.writer import collecting
from namesrv.core.encoding import tag, varint
from namesrv.core.routes import Routes
from namesrv.core.slices import with_breaths
from namesrv.core.state import RouteState
from namesrv.core.watch import RouteWatch, Subscription, WatchIndex

_ROUTE_TAG = tag(route_service_pb2.GetTopicRouteResponse.ROUTE_FIELD_NUMBER)
_MEBIBYTE = 1024 * 1024


def tables(sizes: Sizes, profile: Profile) -> list[Sample]:
    """A table of one profile: filled, looked up in, streamed out and watched, and what collectors make of it."""
    register(new_routes(), registration(0, range(WARM_UP_TOPICS)))
    routes = new_routes()
    state = routes.state
    with frozen():
        figures = [
            *_registered("loading it", routes, profile.registrations()),
            *_lookups(state, profile, sizes.lookups),
            *_snapshot(state),
            *_topic_names(state),
            *_registered("replacing all of it", routes, profile.registrations(counter=2, changed=True)),
            *_snapshot_let_go(routes, profile.registrations(counter=3)),
            *_watches_ended(state, profile, sizes),
            *_collections(),
        ]
    return [Sample(profile.name, *figure) for figure in figures]


def _registered(what: str, routes: Routes, registrations: Iterable[bytes]) -> Iterator[tuple[str, str, float]]:
    pauses, times = Pauses(), ChangeTimes()
    memory = _resident_bytes()
    with pauses:  # also while the next request is made: what may be due then is due to the tables
        for data in registrations:
            register(routes, data, times)
    yield f"{what}, all together", "s", times.all_millis / 1000
    yield f"{what}, longest commit", "ms", max(times.loop_millis)
    yield f"{what}, resident memory that it takes", "MiB", (_resident_bytes() - memory) / _MEBIBYTE
    yield f"{what}, longest garbage collection", "ms", pauses.longest_millis
    for generation, runs in zip(GENERATIONS, pauses.runs, strict=True):
        yield f"{what}, {generation} garbage collections", "runs", runs


def _lookups(state: RouteState, profile: Profile, count: int) -> Iterator[tuple[str, str, float]]:
    names = profile.topic_names(count)
    began = time.perf_counter()
    for topic in names:
        route = state.route(topic)
        assert route is not None
        b"".join((state.header_fragment(), _ROUTE_TAG, varint(len(route)), route))
    seconds = time.perf_counter() - began
    yield "one lookup, mean", "µs", seconds / count * 1_000_000
    yield "lookups per second", "1/s", count / seconds


def _snapshot(state: RouteState) -> Iterator[tuple[str, str, float]]:
    began = time.perf_counter()
    snapshot = state.snapshot()
    yield "taking a snapshot", "ms", millis_since(began)
    held_up = list(step_millis(snapshot.messages()))
    yield "its messages, all together", "ms", sum(held_up)
    yield "its messages, longest of them", "ms", max(held_up)


def _snapshot_let_go(routes: Routes, registrations: Iterable[bytes]) -> Iterator[tuple[str, str, float]]:
    """A snapshot is let go that holds all of its rows alone, because each has been replaced since."""
    state = routes.state
    snapshot = state.snapshot()
    for data in registrations:
        register(routes, data)
    began = time.perf_counter()
    del snapshot
    held_up = [millis_since(began), *step_millis(collecting(state.leftovers.clear_up()))]
    yield "letting a replaced snapshot go, all together", "ms", sum(held_up)
    yield "letting a replaced snapshot go, longest step", "ms", max(held_up)


def _watches_ended(state: RouteState, profile: Profile, sizes: Sizes) -> Iterator[tuple[str, str, float]]:
    """Watches that have read nothing end together, as those of a process that is killed."""
    rng, count = random.Random(SEED), min(sizes.watched_topics, profile.topics)
    index = WatchIndex(state, is_warm=True, max_waiting=sizes.watches * count)
    watches: list[RouteWatch] = []
    for _ in range(sizes.watches):
        names = frozenset(topic_name(number) for number in rng.sample(range(profile.topics), count))
        watches.append(index.open(Subscription(names), lambda: None))
        with_breaths(index.join(watches[-1]))
        with_breaths(index.fill(watches[-1]))
    held_up: list[float] = []
    for watch in watches:
        began = time.perf_counter()
        index.close(watch)
        held_up.append(millis_since(began))
    held_up += step_millis(collecting(state.leftovers.clear_up()))
    ending = f"ending {sizes.watches:,} watches of {count:,} topics"
    yield f"{ending}, all together", "ms", sum(held_up)
    yield f"{ending}, longest step", "ms", max(held_up)


def _topic_names(state: RouteState) -> Iterator[tuple[str, str, float]]:
    for when in ("after a change", "again"):
        began = time.perf_counter()
        page = state.topic_lists.all()
        yield f"list of topic names {when}, taking it", "ms", millis_since(began)
        began = time.perf_counter()
        page("", 1_000)
        yield f"list of topic names {when}, its first page", "ms", millis_since(began)


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


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
