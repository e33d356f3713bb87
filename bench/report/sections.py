"""The sections of ``figures.json``: the workloads of each, on which servers, and how long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import NamedTuple

from bench import watchers
from bench.figures import Figure, Sample, summarise
from bench.peers.measure import Measurement, measure
from bench.peers.servers import JAVA, JAVA_VERSION, NAMESRV_REMOTING, NULL, TLS
from bench.peers.summary import errors_of, figures_of
from bench.peers.warm import LOADED_SECONDS
from bench.peers.workloads import all_workloads
from bench.pipeline.__main__ import samples_of
from bench.pipeline.sizes import Sizes
from tests.faults.load import detection

NATIVE = "native"
HALF_CACHE, NO_CACHE = "native+half-cache", "native+no-cache"


class Effort(NamedTuple):
    """How much is measured."""

    rounds: int = 3
    seconds: float = 4.0
    """Duration of each run."""
    warm_up_seconds: float = LOADED_SECONDS
    """Longest warm-up with each workload."""
    scale: float = 1.0
    """Size of the tables that are looked up and registered."""
    watched: watchers.Scale = watchers.Scale((1_000, 10_000), changes=10, topics=1_000, quiet_seconds=0.1)
    pipeline: Sizes = Sizes(rows=(1_600_000,), rounds=2, changes=50)


QUICK = Effort(rounds=1, seconds=1.0, warm_up_seconds=30.0, pipeline=Sizes(rows=(1_600_000,), rounds=1, changes=10))
"""Shows in a third of the time that every section runs. Its figures are not for publishing."""

Section = Callable[[Effort], list[Figure]]


def _peers(*servers: str, workloads: Sequence[str], rounds: int | None = None, warm_up: bool = True) -> Section:
    """Workloads of ``bench.peers`` on the same processes, one after the other in each round."""

    def run(effort: Effort) -> list[Figure]:
        known = {workload.name: workload for workload in all_workloads(effort.scale)}
        records = measure(
            Measurement(
                [known[name] for name in workloads],
                servers,
                min(rounds or effort.rounds, effort.rounds),
                effort.seconds,
                effort.warm_up_seconds if warm_up else 0.0,
            )
        )
        for record in records:
            assert not errors_of(record), f"{record['workload']} on {record['server']}: {errors_of(record)}"
        return figures_of(records)

    return run


def _all(*parts: Section) -> Section:
    return lambda effort: [figure for part in parts for figure in part(effort)]


def _watchers(effort: Effort) -> list[Figure]:
    return summarise(watchers.measure(effort.watched, (NATIVE, NATIVE + TLS), 1))


def _detection(effort: Effort) -> list[Figure]:
    """A restart takes the name server's warm-up time, so restarts are measured once."""
    lost = (detection.killed, detection.stopped, detection.cut_off)
    return summarise(detection.samples((*lost * effort.rounds, detection.cold, detection.warm)))


def _pipeline(effort: Effort) -> list[Figure]:
    samples: list[Sample] = []
    for name in ("bulk-posix", "bulk-s3", "small-read", "change-to-row"):
        measured = samples_of(name, effort.pipeline)
        assert measured, f"{name} has no figures"
        samples += measured
    return summarise(samples)


SECTIONS: dict[str, Section] = {
    "lookups": _peers(NATIVE, NATIVE + TLS, NAMESRV_REMOTING, JAVA, NULL, HALF_CACHE, NO_CACHE, workloads=["lookups"]),
    "connections": _peers(NATIVE, workloads=["connections-1", "connections-1024"]),
    "capacity": _peers(NATIVE, JAVA, workloads=["capacity-100k-width-16"]),
    "heartbeats": _peers(NATIVE, JAVA, workloads=["heartbeats", "versions"]),
    "storm": _peers(NATIVE, JAVA, workloads=["storm-idle", "storm"]),
    "remoting": _all(
        _peers(NAMESRV_REMOTING, JAVA, workloads=["lookups-20k-width-16"]),
        _peers(NAMESRV_REMOTING, JAVA, workloads=["register-20", "register-1"]),
        _peers(NAMESRV_REMOTING, JAVA, workloads=["register-10k"]),
    ),
    "memory": _peers(NATIVE, JAVA, workloads=["lookups-100k-width-4"], rounds=1, warm_up=False),
    "watchers": _watchers,
    "detection": _detection,
    "pipeline": _pipeline,
}


def engine_of(figure: Figure) -> str:
    """The engine of the name server that a figure is about, or the program that was measured instead."""
    *_, server = figure.workload.split(": ")
    others = {JAVA: f"Apache RocketMQ {JAVA_VERSION}", NULL: "null server"}
    return others.get(server, f"{NATIVE} {version('namesrv-engine')}")
