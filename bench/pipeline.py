"""The route pipeline with real name servers: ``python -m bench.pipeline``.

Name servers and the S3 server run on the same cores. They are filled before anything is measured. The S3 server is
moto's, which is written in Python; ``VERSITYGW=path/to/versitygw`` takes a real one.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.figures import Sample, parser, progress, report, summarise
from bench.workload import Profile
from namesrv_common.endpoints import Endpoint
from route_pipeline.ingest import Ingester, ingest_options
from route_pipeline.log.place import Place
from route_pipeline.log.route_log import COMPACT_EVERY, RouteLog
from route_pipeline.questions import questions
from route_pipeline.session import spark_session
from tests.support.programs.processes import BIN, NamesrvProcess, Process, eventually
from tests.support.programs.s3_server import make_bucket, running_s3_server
from tests.support.registrations import identity, registration
from tests.support.routes.log_rows import read, staged
from tests.support.spark_session import QUICK_START

PROFILE = Profile(100_000, 1_000, 16)
SMOKE_PROFILE = Profile(100, 10, 2)
BULK = f"{PROFILE.name}: 1,600,000 queue rows"
SMALL_TOPICS = 30
SMALL_READ = f"{SMALL_TOPICS} topics of one broker, read by a Spark that is up"
FOLLOW = "follow, a batch each second"
_ATTEMPTS = 4
_CHANGES = 50
_SECONDS = 1_800
"""For one Spark; a busy machine takes longer."""
_REGISTER = "/namesrv_api.v1.RegistrationService/RegisterBroker"


def bulk_posix(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """A snapshot of 1,600,000 queue rows into a log on a disk."""
    with tempfile.TemporaryDirectory(prefix="bench-log-") as folder:
        yield from _ingested(BULK, SMOKE_PROFILE if smoke else PROFILE, folder, rounds)


def bulk_s3(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """The same into a log on an S3 server."""
    with tempfile.TemporaryDirectory(prefix="bench-s3-") as folder, running_s3_server(Path(folder)) as endpoint:
        store = f"s3://{make_bucket(endpoint)}"
        yield from _ingested(f"{BULK}, on S3", SMOKE_PROFILE if smoke else PROFILE, store, rounds)


def memory(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """The memory of an ingest of 1,000,000 and of 10,000,000 queue rows into a log on a disk."""
    for topics in (60, 600) if smoke else (62_500, 625_000):
        profile = (SMOKE_PROFILE if smoke else PROFILE)._replace(topics=topics)
        with tempfile.TemporaryDirectory(prefix="bench-log-") as folder:
            yield from _ingested(f"{topics * profile.width:,} queue rows", profile, folder, rounds, again=0)


def _ingested(
    workload: str, profile: Profile, store: str, rounds: int, *, again: int = _ATTEMPTS - 1
) -> Iterator[Sample]:
    """Ingests of a profile's tables into new logs, each round in a process of its own."""
    with _filled(profile) as namesrv:
        for _ in range(rounds):
            *seconds, peak = _in_a_process(_ingests, namesrv.endpoint, store, 1 + again)
            for attempt, one in enumerate(seconds):
                name = f"ingest, {'again' if attempt else 'first time'}"
                yield Sample(workload, name, "rows/s", profile.topics * profile.width / one)
            yield Sample(workload, "ingest: most memory", "MiB", peak)


@contextmanager
def _filled(profile: Profile) -> Iterator[NamesrvProcess]:
    """A name server that has the tables of a profile."""
    with NamesrvProcess("--name", "ns-a") as namesrv:
        with namesrv.connect() as client:
            register = client.connection.unary_unary(_REGISTER, None, None)
            for request in profile.registrations():
                register(request, timeout=60)
        yield namesrv


def _ingests(endpoint: Endpoint, store: str, times: int) -> list[float]:
    """Seconds of ingests into new logs, and the most memory of this process in MiB."""
    logs = (RouteLog(Place(f"{store}/{secrets.token_hex(4)}")) for _ in range(times))
    seconds = [_timed(Ingester(ingest_options([endpoint]), log).once) for log in logs]
    return [*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def start(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """Starts of a writer on a new log, and on one of 10,000 commits that was compacted as ``follow`` does it."""
    commits = 200 if smoke else 10_000
    with tempfile.TemporaryDirectory(prefix="bench-log-") as folder:
        old = RouteLog(Place(f"{folder}/old"))
        for number in range(1, commits + 1):
            old.append([], staged(old.place, read(number, "snapshot" if number == 1 else "changes")).reads)
            if number % COMPACT_EVERY == 0:
                old.compact()
        for _ in range(_ATTEMPTS * rounds):
            for name, url in (("new log", f"{folder}/{secrets.token_hex(4)}"), (f"{commits:,} commits", old.place.url)):
                (seconds,) = _in_a_process(_opens, url)
                yield Sample("start of a writer", name, "s", seconds)


def _opens(url: str) -> list[float]:
    return [_timed(lambda: RouteLog(Place(url)))]


def followed(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """A question about 1,600,000 queue rows and 1,000 batches of changes, which ``follow`` compacts."""
    profile, batches = (SMOKE_PROFILE, 120) if smoke else (PROFILE, 1_000)
    with _filled(profile) as namesrv, tempfile.TemporaryDirectory(prefix="bench-log-") as folder:
        place = Place(f"{folder}/log")
        ingester = Ingester(ingest_options([namesrv.endpoint], follows=True), RouteLog(place), follows=True)
        ingester.once()
        with namesrv.connect() as client:
            for number in range(batches):
                request = registration([f"Late{number}"], identity(), counter=number + 1)
                client.registration.RegisterBroker(request, timeout=20)
                ingester.once()
        for _ in range(rounds):
            (seconds,) = _in_a_process(_asks, place.url)
            yield Sample(f"{BULK}, {batches:,} batches", "as-of of one topic", "s", seconds)


def _asks(url: str) -> list[float]:
    """Seconds of a question about one topic, with the opening of the log."""
    with questions(Place(url)) as asked:
        (found,) = asked.ask("select min(topic) as topic, (select max(known_to) from known) as until from log")

    def ask() -> None:
        with questions(Place(url)) as asked:
            asked.route_at(found["topic"], found["until"])

    return [_timed(ask)]


def small_read(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """Batch reads of a small name server, by a fresh Spark each round."""
    del smoke
    silent = ("--scan-not-active-broker-interval-millis", "0")  # the broker registers once, and stays
    with NamesrvProcess("--name", "ns-a", *silent) as namesrv, namesrv.connect() as client:
        topics = [f"Topic{number}" for number in range(SMALL_TOPICS)]
        client.registration.RegisterBroker(registration(topics, identity()), timeout=20)
        for _ in range(rounds):
            first, *others = _in_a_process(_reads, namesrv.endpoint)
            yield Sample(SMALL_READ, "first read", "s", first)
            yield from (Sample(SMALL_READ, "read again", "s", one) for one in others)


def _reads(endpoint: Endpoint) -> list[float]:
    with spark_session("local[2]", QUICK_START) as spark:
        spark.range(1).count()
        routes = spark.read.format("namesrv").option("endpoints", str(endpoint))
        return [_timed(lambda: routes.load().collect()) for _ in range(1 + _ATTEMPTS)]


def change_to_row(rounds: int, *, smoke: bool) -> Iterator[Sample]:
    """Seconds from a registration's answer to its row in the log, under ``follow --every 1``."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-pipeline-") as folder,
        NamesrvProcess("--name", "ns-a") as namesrv,
        namesrv.connect() as client,
    ):
        log = Path(folder) / "followed"
        arguments = ("follow", "--namesrv", str(namesrv.endpoint), "--out", str(log), "--every", "1")
        with Process([str(BIN / "route-pipeline"), *arguments]):
            # The table is the first commit, and the first batch the second one.
            eventually(lambda: len(list(log.glob("changes/_delta_log/*.json"))) > 1, within_seconds=180)
            for number in range(3 if smoke else rounds * _CHANGES):
                topic = f"Late{number}"
                request = registration([topic], identity(), counter=number + 1)
                client.registration.RegisterBroker(request, timeout=20)
                seconds = _timed(lambda topic=topic: eventually(lambda: topic in _topics(log), within_seconds=60))  # type: ignore[misc]
                yield Sample(FOLLOW, "from a change to its row", "s", seconds)


def _topics(log: Path) -> set[str]:
    """Topics that have a row."""
    with questions(Place(str(log))) as asked:
        return {row["topic"] for row in asked.ask("select distinct topic from log where topic is not null")}


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _in_a_process(work: Callable[..., list[float]], *arguments: object) -> list[float]:
    """Runs work in a process of its own, without Java or memory of the last. Its output goes to standard error."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.dup2, (2, 1)) as process:
        return process.submit(work, *arguments).result(_SECONDS)


WORKLOADS = {
    "bulk-posix": bulk_posix,
    "bulk-s3": bulk_s3,
    "memory": memory,
    "start": start,
    "followed": followed,
    "small-read": small_read,
    "change-to-row": change_to_row,
}


def measure(names: Iterable[str], rounds: int, *, smoke: bool = False) -> Iterator[Sample]:
    """Runs workloads, one after the other."""
    for name in names:
        progress(f"pipeline: {name}")
        yield from WORKLOADS[name](rounds, smoke=smoke)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    options = parser("pipeline", __doc__)
    options.add_argument("--only", nargs="+", choices=WORKLOADS, default=[*WORKLOADS], metavar="NAME")
    given = options.parse_args(arguments)
    names = ["bulk-posix"] if given.smoke and given.only == [*WORKLOADS] else given.only
    rounds = 1 if given.smoke else given.rounds
    report(given, summarise(measure(names, rounds, smoke=given.smoke)))


if __name__ == "__main__":
    main()
