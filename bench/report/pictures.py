"""The pictures of docs/performance.md and README.md, drawn from figures.json."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.peers.servers import JAVA, NAMESRV_REMOTING, TLS
from bench.peers.summary import P50, P99, P99_9, RATE, Values, values_of
from bench.report.page import ROOT
from bench.report.sections import NATIVE
from bench.report.store import Stored

FOLDER = ROOT / "docs" / "pictures"
_ROUTE = "GetTopicRoute"
_OURS, _THEIRS = "tab:green", "tab:red"
_RATES = {
    NATIVE: ("namesrv", _OURS),
    NATIVE + TLS: ("namesrv with TLS", _OURS),
    NAMESRV_REMOTING: ("namesrv,\nRocketMQ's protocol", _OURS),
    JAVA: ("Java,\nRocketMQ's protocol", _THEIRS),
}
_STORM = (
    ("storm-idle", NATIVE, "namesrv, idle", "#9fd69f"),
    ("storm", NATIVE, "namesrv, brokers register", _OURS),
    ("storm-idle", JAVA, "Java, idle", "#f0a8a8"),
    ("storm", JAVA, "Java, brokers register", _THEIRS),
)


def draw(figures: Sequence[Stored], folder: Path = FOLDER) -> None:
    """Draws all pictures into a folder."""
    values = values_of(one.figure for one in figures)
    _lookups(values, folder / "performance-lookups.png")
    _storm(values, folder / "performance-storm.png")


def _lookups(values: Values, file: Path) -> None:
    """Lookups per second, medians with their ranges."""
    figure, axes = _sheet("Lookups on one core, 64 connections")
    for place, (server, (_, colour)) in enumerate(_RATES.items()):
        rates = values.get((f"lookups: {server}", f"{RATE}, {_ROUTE}"), (0.0,))
        median = statistics.median(rates)
        axes.bar(place, median, 0.6, color=colour, yerr=[[median - min(rates)], [max(rates) - median]], capsize=6)
    axes.set_xticks(range(len(_RATES)), [label for label, _ in _RATES.values()])
    axes.set_ylabel("lookups per second")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    figure.savefig(file, dpi=120)


def _storm(values: Values, file: Path) -> None:
    """Latency of lookups, medians of the rounds."""
    figure, axes = _sheet("500 lookups per second, idle and while 32 brokers register 10,000 topics each")
    names = {"median": P50, "p99": P99, "p99.9": P99_9}
    for number, (workload, server, label, colour) in enumerate(_STORM):
        rounds = [values.get((f"{workload}: {server}", f"{name}, {_ROUTE}"), (1.0,)) for name in names.values()]
        places = [place + 0.2 * number for place in range(len(names))]
        bars = axes.bar(places, [statistics.median(one) for one in rounds], 0.18, color=colour, label=label)
        axes.bar_label(bars, fmt="{:.3g}", fontsize="small")
    axes.set_xticks([place + 0.3 for place in range(len(names))], [*names])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("milliseconds")
    figure.legend(loc="outside lower center", ncols=len(_STORM))
    figure.savefig(file, dpi=120)


def _sheet(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(visible=True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes
