"""Measures the figures of docs/performance.md, keeps them in a file, and renders the page: ``python -m bench.report``.

``--only lookups storm`` measures some sections, and the file keeps the others. ``--render`` only renders the page. It
names a block between ``<!-- figures: NAME -->`` and ``<!-- /figures -->``, and the text in between is replaced.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from bench import pipeline
from bench.figures import Figure, Sample, machine, parser, progress, report, shown, summarise
from bench.peers import generator
from bench.peers.measure import CPU, P99, PEAK, RATE, Effort, measure, ratio_of
from bench.peers.servers import (
    HALF_CACHE,
    JAVA,
    JAVA_VERSION,
    NAMESRV_REMOTING,
    NATIVE,
    NO_CACHE,
    NULL,
    REMOTING_TLS,
    TLS,
)
from bench.peers.workloads import all_workloads
from namesrv.engines.api import native_problem

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).parent / "results" / "figures.json"
PAGE = ROOT / "docs/performance.md"
COMMAND = "python -m bench.report --only"
_BLOCK = re.compile(r"(<!-- figures: ([a-z-]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
_ROUTE, _REGISTER = "GetTopicRoute", "RegisterBroker"

Section = Callable[[Effort], Iterable[Sample]]
Rows = Iterable[Sequence[str]]
"""Rows of a table; the first one has the titles."""


def _peers(*servers: str, workloads: Sequence[str], one_round: bool = False) -> Section:
    """Workloads of ``bench.peers`` on the same processes, one after the other in each round."""

    def run(effort: Effort) -> Iterable[Sample]:
        known = all_workloads(effort.scale)
        # For peak memory one round is enough, and no warm-up.
        chosen = effort._replace(rounds=1, warm_up_seconds=0.0) if one_round else effort
        return measure([known[name] for name in workloads], servers, chosen)

    return run


def _registrations(effort: Effort) -> Iterator[Sample]:
    small = ["register-20", "register-20-changed", "register-1", "register-1-changed"]
    for workloads in (["lookups-20k-width-16"], ["mixed"], small, ["register-10k"]):
        yield from _peers(NAMESRV_REMOTING, JAVA, workloads=workloads)(effort)


SECTIONS: dict[str, Section] = {
    "lookups": _peers(
        *(NATIVE, TLS, NAMESRV_REMOTING, REMOTING_TLS, JAVA, NULL, HALF_CACHE, NO_CACHE), workloads=["lookups"]
    ),
    "connections": _peers(NATIVE, NAMESRV_REMOTING, JAVA, workloads=["connections-1", "connections-1024"]),
    "capacity": _peers(NATIVE, NAMESRV_REMOTING, JAVA, workloads=["capacity-100k-width-16"]),
    "heartbeats": _peers(NATIVE, JAVA, workloads=["heartbeats", "versions"]),
    "storm": _peers(NATIVE, NAMESRV_REMOTING, JAVA, workloads=["storm-idle", "storm"]),
    "remoting": _registrations,
    "memory": _peers(NATIVE, JAVA, workloads=["lookups-100k-width-4"], one_round=True),
    "pipeline": lambda effort: pipeline.measure(pipeline.WORKLOADS, effort.rounds),
}


class Stored(NamedTuple):
    """One figure of all rounds, and how it was measured."""

    section: str
    workload: str
    name: str
    unit: str
    values: Sequence[float]
    """One of each round."""
    engine: str
    """The gRPC engine of the name server, or the program that was measured instead."""
    command: str
    commit: str
    machine: str
    date: str


def read(file: Path = FILE) -> list[Stored]:
    """Reads all figures; none if there is no file."""
    return [Stored(**one) for one in json.loads(file.read_text())["figures"]] if file.exists() else []


def merge(file: Path, section: str, command: str, figures: Iterable[Figure]) -> None:
    """Replaces the figures of a section in the file."""
    facts = machine()
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    place = f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python {facts['python']}, {packages}"
    others = {JAVA: f"Apache RocketMQ {JAVA_VERSION}", NULL: "null server"}
    own = f"{NATIVE} {version('namesrv-engine')}"
    origin = {"command": command, "commit": facts["commit"], "machine": place, "date": facts["date"]}
    measured = [
        Stored(section, *figure, others.get(figure.workload.rpartition(": ")[2], own), **origin) for figure in figures
    ]
    kept = [one for one in read(file) if one.section != section]
    rows = ",\n".join(json.dumps(one._asdict()) for one in sorted([*kept, *measured], key=lambda one: one.section))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{{"figures": [\n{rows}\n]}}\n')


class Figures:
    """Figures as text."""

    def __init__(self, stored: Sequence[Stored]) -> None:
        self.stored = stored
        self._values = {(one.workload, one.name): one.values for one in stored}

    def text(self, workload: str, name: str, unit: str) -> str:
        """The median and the range of a figure."""
        values = self._values.get((workload, name), ())
        if not values:
            return "not measured"
        median, least, most = (shown(one) for one in (statistics.median(values), min(values), max(values)))
        return f"{median}{unit}" if least == most else f"{median}{unit} ({least} to {most})"

    def median(self, workload: str, name: str, unit: str) -> str:
        """The median alone."""
        return self.text(workload, name, unit).partition(" (")[0]

    def rate(self, workload: str, server: str, call: str = _ROUTE) -> str:
        """Answers per second."""
        return self.text(f"{workload}: {server}", f"{RATE}, {call}", "/s")

    def p99(self, workload: str, server: str, call: str = _ROUTE) -> str:
        """The median of the rounds' p99."""
        return self.median(f"{workload}: {server}", f"{P99}, {call}", " ms")

    def ratio(self, workload: str, server: str, call: str = _ROUTE) -> str:
        """The rate divided by that of warm Java, with the round in which Java was warm."""
        since, values = ratio_of(self._values, workload, server, f"{RATE}, {call}")
        if since is None or not values:
            return "no ratio: Java was not warm"
        median, least, most = (f"{one:.2f}" for one in (statistics.median(values), min(values), max(values)))
        times = median if least == most else f"{median} ({least} to {most})"
        return f"{times} times ({since})"


_WIDE = "lookups with 5 % registrations, 100,000 topics on 16 groups each, 1,024 connections"
_AT_A_GLANCE = (
    ("lookups, 20,000 topics, 64 connections", "lookups", NATIVE, _ROUTE, "lookups"),
    ("the same over TLS (Java without TLS)", "lookups", TLS, _ROUTE, "lookups"),
    (_WIDE, "capacity-100k-width-16", NATIVE, _ROUTE, "capacity"),
    ("heartbeats, 64 connections", "heartbeats", NATIVE, "BrokerHeartbeat", "heartbeats"),
    ("unchanged `QueryDataVersion`, 64 connections", "versions", NATIVE, "QueryDataVersion", "heartbeats"),
)
_OWN_PROTOCOL = (
    ("lookups, one broker group per topic", "lookups", NAMESRV_REMOTING, _ROUTE, "lookups"),
    ("the same over TLS (Java without TLS)", "lookups", REMOTING_TLS, _ROUTE, "lookups"),
    ("lookups, 16 broker groups per topic", "lookups-20k-width-16", NAMESRV_REMOTING, _ROUTE, "remoting"),
    ("lookups, 1 connection", "connections-1", NAMESRV_REMOTING, _ROUTE, "connections"),
    ("lookups, 1,024 connections", "connections-1024", NAMESRV_REMOTING, _ROUTE, "connections"),
    ("lookups with 5 % registrations, 64 connections", "mixed", NAMESRV_REMOTING, _ROUTE, "remoting"),
    (_WIDE, "capacity-100k-width-16", NAMESRV_REMOTING, _ROUTE, "capacity"),
    ("registrations of 10,000 unchanged topics", "register-10k", NAMESRV_REMOTING, _REGISTER, "remoting"),
    ("registrations of 20 unchanged topics", "register-20", NAMESRV_REMOTING, _REGISTER, "remoting"),
    ("registrations of 20 changed topics", "register-20-changed", NAMESRV_REMOTING, _REGISTER, "remoting"),
    ("registrations of one unchanged topic", "register-1", NAMESRV_REMOTING, _REGISTER, "remoting"),
    ("registrations of one changed topic", "register-1-changed", NAMESRV_REMOTING, _REGISTER, "remoting"),
)
"""Rows that compare a server with Java: the title, the workload, the server, the call, the section."""


def _compared(what: str, rate: str, rows: Sequence[tuple[str, str, str, str, str]]) -> Callable[[Figures], Rows]:
    def block(figures: Figures) -> Rows:
        yield what, "namesrv", f"Java {JAVA_VERSION}", rate, "section"
        for title, workload, server, call, section in rows:
            own, java = (
                f"{figures.rate(workload, one, call)}, p99 {figures.p99(workload, one, call)}" for one in (server, JAVA)
            )
            yield title, own, java, figures.ratio(workload, server, call), f"`--only {section}`"

    return block


def _storm(figures: Figures) -> Rows:
    yield "p99 of 500 lookups per second", "namesrv", "namesrv, RocketMQ's protocol", f"Java {JAVA_VERSION}"
    for title, workload in (
        ("nothing else", "storm-idle"),
        ("while 32 brokers register 10,000 topics each, again and again", "storm"),
    ):
        servers = (NATIVE, NAMESRV_REMOTING, JAVA)
        p99s = (figures.text(f"{workload}: {one}", f"{P99}, {_ROUTE}", " ms") for one in servers)
        yield title, *p99s


def _memory(figures: Figures) -> Rows:
    yield "table", "namesrv", f"Java {JAVA_VERSION}, heap limit 4 GiB", "section"
    for title, workload, section in (
        ("20,000 topics on 1 group each", "lookups", "lookups"),
        ("100,000 topics on 4 groups each", "lookups-100k-width-4", "memory"),
        ("100,000 topics on 16 groups each, 1,024 connections", "capacity-100k-width-16", "capacity"),
    ):
        peaks = (figures.text(f"{workload}: {server}", PEAK, " MiB") for server in (NATIVE, JAVA))
        yield title, *peaks, f"`--only {section}`"


def _slower(figures: Figures) -> Rows:
    yield "lookups", "rate", "p99", "CPU time per call"
    for title, workload, server in (
        ("64 connections, every lookup cached", "lookups", NATIVE),
        ("64 connections, cache for half of the routes", "lookups", HALF_CACHE),
        ("64 connections, no cache", "lookups", NO_CACHE),
        ("1 connection, every lookup cached", "connections-1", NATIVE),
        ("1,024 connections, every lookup cached", "connections-1024", NATIVE),
        ("null server: HTTP/2 with the same libraries and a constant answer", "lookups", NULL),
    ):
        cpu = figures.text(f"{workload}: {server}", CPU, " µs")
        yield title, figures.rate(workload, server), figures.p99(workload, server), cpu


def _pipeline(figures: Figures) -> Rows:
    bulk, read_small, follow = pipeline.BULK, pipeline.SMALL_READ, pipeline.FOLLOW
    yield "workload on two cores", "measured"
    yield "ingest of 1,600,000 queue rows, local disk", figures.text(bulk, "ingest, again", " rows/s")
    yield "the same into S3", figures.text(f"{bulk}, on S3", "ingest, again", " rows/s")
    yield "first read of 30 topics in a session", figures.text(read_small, "first read", " s")
    yield "the same again", figures.text(read_small, "read again", " s")
    change = "from a change to its row"
    yield f"{change} in the log, `follow --every 1`", figures.text(follow, change, " s")
    for rows in ("1,000,000", "10,000,000"):
        peak = figures.text(f"{rows} queue rows", "ingest: most memory", " MiB")
        yield f"peak memory of an ingest of {rows} queue rows", peak
    asked = f"{bulk}, 1,000 batches"
    yield "as-of of one topic in 1,600,000 rows and 1,000 batches", figures.text(asked, "as-of of one topic", " s")
    for log in ("new log", "10,000 commits"):
        yield f"start of a writer, {log}", figures.text("start of a writer", log, " s")


def _runs(figures: Figures) -> Rows:
    """How sections were measured; one row for each day and machine."""
    origins: dict[tuple[str, str], list[Stored]] = {}
    for one in figures.stored:
        origins.setdefault((one.date, one.machine), []).append(one)
    yield "commit: sections", "date", "programs", "machine"
    for (date, place), measured in origins.items():
        commits: dict[str, dict[str, None]] = {}
        for one in measured:
            commits.setdefault(one.commit, {})[f"`{one.section}`"] = None
        sections = "; ".join(f"`{commit}`: {', '.join(names)}" for commit, names in commits.items())
        yield sections, date, ", ".join(dict.fromkeys(one.engine for one in measured)), place


BLOCKS: dict[str, Callable[[Figures], Rows]] = {
    "at-a-glance": _compared("workload", "rate compared with Java (Java warm since)", _AT_A_GLANCE),
    "storm": _storm,
    "memory": _memory,
    "remoting": _compared("workload on RocketMQ's protocol", "rate compared with Java", _OWN_PROTOCOL),
    "slower": _slower,
    "pipeline": _pipeline,
    "runs": _runs,
}


def rendered(page: str, figures: Sequence[Stored]) -> str:
    """A page with its blocks rendered from figures. Raises KeyError if it names an unknown block."""

    def block(match: re.Match[str]) -> str:
        titles, *rows = (f"| {' | '.join(row)} |" for row in BLOCKS[match[2]](Figures(figures)))
        return "\n".join((match[1] + titles, "|" + "---|" * (titles.count(" | ") + 1), *rows, match[3]))

    return _BLOCK.sub(block, page)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, section by section, and renders."""
    options = parser("report", __doc__)
    options.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS], metavar="SECTION")
    options.add_argument("--render", action="store_true", help="measure nothing; only render the page")
    given = options.parse_args(arguments)
    effort = Effort(1, 0.3, 0.0, 0.01) if given.smoke else Effort(given.rounds)
    if given.smoke:
        report(given, summarise(SECTIONS["connections"](effort)))
        return
    file = given.json or FILE
    failed = []
    if not given.render and (problem := native_problem()) is not None:
        raise SystemExit(f"{problem}: run make engine")
    for name in () if given.render else given.only:
        progress(f"== {name}")
        try:
            generator.program()
            merge(file, name, f"{COMMAND} {name}", summarise(SECTIONS[name](effort)))
        except Exception as error:  # noqa: BLE001 - the other sections are still worth their time
            progress(f"{name} failed: {type(error).__name__}: {error}")
            failed.append(name)
    if file == FILE:
        PAGE.write_text(rendered(PAGE.read_text(), read()))
    if failed:
        raise SystemExit(f"not measured: {COMMAND} {' '.join(failed)}")


if __name__ == "__main__":
    main()
