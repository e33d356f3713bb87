"""Renders the blocks of pages that have figures.

A page names a block between two marks, and its text in between is replaced::

    <!-- figures: at-a-glance -->
    <!-- /figures -->

``<!-- figures -->`` without a name is README.md's block, ``readme``.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.peers.servers import JAVA, JAVA_VERSION, NAMESRV_REMOTING, NULL, TLS
from bench.peers.summary import CPU, P99, PEAK, RATE, Ratio, ratio_of, values_of
from bench.report.sections import HALF_CACHE, NATIVE, NO_CACHE
from bench.report.store import Stored
from tests.faults.load.detection import WORKLOAD as DETECTION

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / name for name in ("README.md", "docs/performance.md", "docs/faults.md"))
COMMAND = "python -m bench.report --only"
_BLOCK = re.compile(r"(<!-- figures(?:: ([a-z-]+))? -->\n).*?(<!-- /figures -->)", re.DOTALL)
_MISSING = "not measured"
_ROUTE, _HEARTBEAT, _QUERY, _REGISTER = "GetTopicRoute", "BrokerHeartbeat", "QueryDataVersion", "RegisterBroker"
_BULK = "100,000 topics x 1,000 brokers x width 16: 1,600,000 queue rows"
_READ = "30 topics of one broker, read by a Spark that is up"
_FOLLOW = "follow, a batch each second"


class Figures:
    """Figures as text."""

    def __init__(self, stored: Sequence[Stored]) -> None:
        self.stored = stored
        self._values = values_of(one.figure for one in stored)

    def text(self, workload: str, name: str, unit: str, factor: float = 1.0) -> str:
        """The median and the range of a figure."""
        values = [factor * value for value in self._values.get((workload, name), ())]
        if not values:
            return _MISSING
        median, least, most = (rounded(one) for one in (statistics.median(values), min(values), max(values)))
        return f"{median}{unit}" if least == most else f"{median}{unit} ({least} to {most})"

    def median(self, workload: str, name: str, unit: str) -> str:
        """The median alone."""
        return self.text(workload, name, unit).partition(" (")[0]

    def rate(self, workload: str, server: str, call: str) -> str:
        """Answers per second."""
        return self.text(f"{workload}: {server}", f"{RATE}, {call}", "/s")

    def p99(self, workload: str, server: str, call: str) -> str:
        """The median of the rounds' p99."""
        return self.median(f"{workload}: {server}", f"{P99}, {call}", " ms")

    def ratio(self, workload: str, server: str, call: str) -> Ratio:
        """The rate divided by that of warm Java."""
        return ratio_of(self._values, workload, server, f"{RATE}, {call}")

    def ratio_text(self, workload: str, server: str, call: str) -> str:
        """The same as text, with the round in which Java was warm."""
        ratio = self.ratio(workload, server, call)
        if ratio.warm is None or not ratio.values:
            return "no ratio: Java was not warm"
        return f"{_range(ratio.values)} times ({ratio.warm})"


def rounded(value: float) -> str:
    """A number with three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f}" if abs(value) >= 100 else f"{float(digits):.12g}"


def _range(values: Sequence[float]) -> str:
    median, least, most = (f"{one:.2f}" for one in (statistics.median(values), min(values), max(values)))
    return median if least == most else f"{median} ({least} to {most})"


def _table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _command(section: str) -> str:
    return f"`--only {section}`"


def _at_a_glance(figures: Figures) -> Iterator[str]:
    rows = (
        ("lookups, 20,000 topics, 64 connections", "lookups", NATIVE, _ROUTE, "lookups"),
        ("the same over TLS (Java without TLS)", "lookups", NATIVE + TLS, _ROUTE, "lookups"),
        (
            "lookups with 5 % registrations, 100,000 topics on 16 groups each, 1,024 connections",
            "capacity-100k-width-16",
            NATIVE,
            _ROUTE,
            "capacity",
        ),
        ("heartbeats, 64 connections", "heartbeats", NATIVE, _HEARTBEAT, "heartbeats"),
        ("unchanged `QueryDataVersion`, 64 connections", "versions", NATIVE, _QUERY, "heartbeats"),
    )
    cells = (
        (
            title,
            f"{figures.rate(workload, server, call)}, p99 {figures.p99(workload, server, call)}",
            f"{figures.rate(workload, JAVA, call)}, p99 {figures.p99(workload, JAVA, call)}",
            figures.ratio_text(workload, server, call),
            _command(section),
        )
        for title, workload, server, call, section in rows
    )
    titles = ("workload", "namesrv", f"Java {JAVA_VERSION}", "rate compared with Java (Java warm since)", "section")
    yield from _table(titles, cells)


def _storm(figures: Figures) -> Iterator[str]:
    yield from _table(
        ("p99 of 500 lookups per second", "namesrv", f"Java {JAVA_VERSION}"),
        (
            (
                title,
                *(figures.text(f"{workload}: {server}", f"{P99}, {_ROUTE}", " ms") for server in (NATIVE, JAVA)),
            )
            for title, workload in (
                ("nothing else", "storm-idle"),
                ("while 32 brokers register 10,000 topics each, again and again", "storm"),
            )
        ),
    )


def _memory(figures: Figures) -> Iterator[str]:
    yield from _table(
        ("table", "namesrv", f"Java {JAVA_VERSION}, heap limit 4 GiB", "section"),
        (
            (
                title,
                *(figures.text(f"{workload}: {server}", PEAK, " MiB") for server in (NATIVE, JAVA)),
                _command(section),
            )
            for title, workload, section in (
                ("20,000 topics on 1 group each", "lookups", "lookups"),
                ("100,000 topics on 4 groups each", "lookups-100k-width-4", "memory"),
                (
                    "100,000 topics on 16 groups each, 1,024 connections",
                    "capacity-100k-width-16",
                    "capacity",
                ),
            )
        ),
    )


def _remoting(figures: Figures) -> Iterator[str]:
    rows = (
        ("lookups, one broker group per topic", "lookups", _ROUTE, "lookups"),
        ("lookups, 16 broker groups per topic", "lookups-20k-width-16", _ROUTE, "remoting"),
        ("registrations of 10,000 unchanged topics", "register-10k", _REGISTER, "remoting"),
        ("registrations of 20 unchanged topics", "register-20", _REGISTER, "remoting"),
        ("registrations of one changed topic", "register-1", _REGISTER, "remoting"),
    )
    yield from _table(
        ("workload on RocketMQ's protocol", "namesrv", f"Java {JAVA_VERSION}", "rate compared with Java", "section"),
        (
            (
                title,
                figures.rate(workload, NAMESRV_REMOTING, call),
                figures.rate(workload, JAVA, call),
                figures.ratio_text(workload, NAMESRV_REMOTING, call),
                _command(section),
            )
            for title, workload, call, section in rows
        ),
    )


def _slower(figures: Figures) -> Iterator[str]:
    rows = (
        ("64 connections, every lookup cached", "lookups", NATIVE),
        ("64 connections, cache for half of the routes", "lookups", HALF_CACHE),
        ("64 connections, no cache", "lookups", NO_CACHE),
        ("1 connection, every lookup cached", "connections-1", NATIVE),
        ("1,024 connections, every lookup cached", "connections-1024", NATIVE),
        ("null server: HTTP/2 with the same libraries and a constant answer", "lookups", NULL),
    )
    yield from _table(
        ("lookups", "rate", "p99", "CPU time per call"),
        (
            (
                title,
                figures.rate(workload, server, _ROUTE),
                figures.p99(workload, server, _ROUTE),
                figures.text(f"{workload}: {server}", CPU, " µs"),
            )
            for title, workload, server in rows
        ),
    )


def _events(figures: Figures) -> Iterator[str]:
    def watched(count: str, server: str = NATIVE) -> str:
        return f"{server}: {count} watchers of one topic"

    def told(count: str, server: str = NATIVE) -> str:
        return figures.text(watched(count, server), "one topic changes: told, p99", " ms")

    def lost(name: str) -> str:
        return figures.text(DETECTION, name, " s")

    rows = (
        ("a change reaches 1,000 watchers, p99", told("1,000"), "watchers"),
        (
            "a change reaches 10,000 watchers, p99",
            f"{told('10,000')}; over TLS {told('10,000', NATIVE + TLS)}",
            "watchers",
        ),
        (
            "memory of an idle watch",
            figures.text(watched("10,000"), "resident memory of the server, each", " KiB"),
            "watchers",
        ),
        (
            "the broker of a killed agent leaves the routes",
            figures.text(DETECTION, "broker killed", " ms", 1000),
            "detection",
        ),
        ("the broker of a stopped agent leaves the routes", lost("broker stopped"), "detection"),
        ("the broker of a disconnected agent leaves the routes", lost("broker cut off"), "detection"),
    )
    yield from _table(("event", "measured", "section"), ((title, text, _command(name)) for title, text, name in rows))


def _detection(figures: Figures) -> Iterator[str]:
    rows = (
        ("the broker of a killed agent leaves the routes", "broker killed"),
        ("the broker of a stopped agent leaves the routes", "broker stopped"),
        ("the broker of a disconnected agent leaves the routes", "broker cut off"),
        ("that broker is back after the network is", "broker back after the cut"),
        ("a killed name server without a snapshot file has all routes again", "cold name server: all routes"),
        ("that name server is ready (warm-up time 45 s)", "cold name server: ready"),
        ("a killed name server with a snapshot file has all routes again", "warm name server: all routes"),
        ("that name server is ready", "warm name server: ready"),
    )
    yield from _table(
        ("event", "median (range)"), ((title, figures.text(DETECTION, name, " s")) for title, name in rows)
    )


def _failures(figures: Figures) -> Iterator[str]:
    command = "python -m tests.faults.load.detection"
    rows = (
        ("agent killed", "its channel ends", figures.text(DETECTION, "broker killed", " ms", 1000), command),
        (
            "broker killed, agent alive",
            "three failed probes, one per second",
            "at most 3 s",
            "pytest tests/integration/agent/test_broker_probe.py",
        ),
        (
            "machine stopped or unplugged",
            "a ping unanswered for 5 s, sent after 5 s of silence",
            f"{figures.median(DETECTION, 'broker cut off', ' s')} (at most 10 s)",
            command,
        ),
        (
            "broker without an agent falls silent",
            "no heartbeat for its timeout",
            "120 s (default)",
            "pytest tests/unit/namesrv/scenarios",
        ),
    )
    yield from _table(
        ("failure", "detected by", "removed after", "reproduce with"),
        ((failure, by, after, f"`{shown}`") for failure, by, after, shown in rows),
    )


def _pipeline(figures: Figures) -> Iterator[str]:
    rows = (
        ("ingest of 1,600,000 queue rows, local disk", figures.text(_BULK, "ingest, again", " rows/s")),
        ("the same into S3", figures.text(f"{_BULK}, on S3", "ingest, again", " rows/s")),
        ("first read of 30 topics in a session", figures.text(_READ, "first read", " s")),
        ("the same again", figures.text(_READ, "read again", " s")),
        (
            "from a change to its row in the log, `follow --every 1`",
            figures.text(_FOLLOW, "from a change to its row", " s"),
        ),
        (
            "largest memory of Java, and of one Python worker, during the ingest",
            ", ".join(
                figures.median(_BULK, f"ingest: {name}", " MiB")
                for name in ("most memory of Java", "of one Python worker")
            ),
        ),
    )
    yield from _table(("workload, Spark on two cores", "measured"), iter(rows))


def _readme(figures: Figures) -> Iterator[str]:
    def compared(server: str) -> str:
        ratio = figures.ratio("lookups", server, _ROUTE)
        rate = figures.rate("lookups", server, _ROUTE)
        return f"{_range(ratio.values)} times; {rate}" if ratio.values else f"{rate}; no ratio, Java was not warm"

    def storm(workload: str, server: str) -> str:
        return figures.p99(workload, server, _ROUTE)

    def told(count: str) -> str:
        return figures.median(f"{NATIVE}: {count} watchers of one topic", "one topic changes: told, p99", " ms")

    rows = (
        ("lookups per second, 64 connections", compared(NATIVE), "lookups"),
        ("the same over TLS (Java without TLS)", compared(NATIVE + TLS), "lookups"),
        (
            "p99 of lookups while 32 brokers register 10,000 topics each",
            f"{storm('storm', NATIVE)} ({storm('storm-idle', NATIVE)} idle); Java: {storm('storm', JAVA)}",
            "storm",
        ),
        ("p99 until a change reaches 1,000 watchers; 10,000", f"{told('1,000')}; {told('10,000')}", "watchers"),
    )
    yield from _table(
        (f"native engine, compared with Apache's Java name server {JAVA_VERSION} (warm)", "measured", "command"),
        ((title, text, f"`{COMMAND} {section}`") for title, text, section in rows),
    )


def _runs(figures: Figures) -> Iterator[str]:
    """How sections were measured; one row for each day and machine."""
    origins: dict[tuple[str, str], list[Stored]] = {}
    for one in figures.stored:
        origins.setdefault((one.date, one.machine), []).append(one)
    yield from _table(
        ("commit: sections", "date", "programs", "machine"),
        (
            (_commits(measured), date, ", ".join(dict.fromkeys(one.engine for one in measured)), machine)
            for (date, machine), measured in origins.items()
        ),
    )


def _commits(measured: Sequence[Stored]) -> str:
    sections: dict[str, dict[str, None]] = {}
    for one in measured:
        sections.setdefault(one.commit, {})[f"`{one.command.partition('--only ')[2]}`"] = None
    return "; ".join(f"`{commit}`: {', '.join(names)}" for commit, names in sections.items())


BLOCKS: dict[str, Callable[[Figures], Iterator[str]]] = {
    "at-a-glance": _at_a_glance,
    "storm": _storm,
    "memory": _memory,
    "remoting": _remoting,
    "slower": _slower,
    "events": _events,
    "detection": _detection,
    "failures": _failures,
    "pipeline": _pipeline,
    "readme": _readme,
    "runs": _runs,
}


def rendered(page: str, figures: Sequence[Stored]) -> str:
    """A page with its blocks rendered from figures.

    Raises:
        KeyError: The page names a block that there is not.
    """
    as_text = Figures(figures)

    def block(match: re.Match[str]) -> str:
        lines = "\n".join(BLOCKS[match[2] or "readme"](as_text))
        return f"{match[1]}{lines}\n{match[3]}"

    return _BLOCK.sub(block, page)
