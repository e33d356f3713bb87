"""The pictures of the report."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.report.results import Results, peak_mib, rate, tally

_LOOKUP = "GetTopicRoute"
_CONNECTIONS = {1: "connections-1", 64: "lookups", 256: "connections-256", 1_024: "connections-1024"}
"""The workload of each number of connections."""
_TABLES = ("lookups-1k-width-4", "lookups", "lookups-100k-width-4", "capacity-100k-width-16")
_WATCHERS = (100, 1_000, 10_000)
_LARGEST_SHOWN = 0.9999
"""Of a latency curve: beyond it stand single calls."""
_SHARES = (0.1, 0.5, 0.9, 0.99, 0.999)
_OURS = ("grpcio", "native")
_COLOURS = {
    "grpcio": "tab:blue",
    "native": "tab:green",
    "naive": "tab:gray",
    "java": "tab:red",
    "rust": "tab:orange",
}


class Plot(NamedTuple):
    """One picture."""

    name: str
    title: str
    draw: Callable[[Results, Path], bool]
    """Draws it into a file; False if there is nothing to draw."""


def throughput(results: Results, file: Path) -> bool:
    """Answers per second by the number of connections."""
    figure, axes = _sheet("Lookups by connections, each waiting for its answer", "connections", "lookups per second")
    for server, colour in _COLOURS.items():
        points = []
        for count, workload in _CONNECTIONS.items():
            if rounds := results.records(workload, server):
                rates = [rate(record, _LOOKUP) for record in rounds]
                points.append((count, statistics.median(rates), min(rates), max(rates)))
        if len(points) > 1:
            counts, medians, least, most = zip(*points, strict=True)
            axes.plot(counts, medians, marker="o", color=colour, label=server)
            axes.fill_between(counts, least, most, color=colour, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_xticks([*_CONNECTIONS], [f"{count:,}" for count in _CONNECTIONS])
    axes.set_ylim(bottom=0)
    return _save(figure, axes, file)


def latency(workload: str, title: str) -> Callable[[Results, Path], bool]:
    """Which share of calls was answered within which time; the round in the middle by its p99."""

    def draw(results: Results, file: Path) -> bool:
        figure, axes = _sheet(title, "milliseconds", "answered within")
        for server, colour in _COLOURS.items():
            rounds = sorted(
                (tally(record, _LOOKUP) for record in results.records(workload, server)),
                key=lambda calls: float(calls["latency_ms"]["p99"]),
            )
            if rounds:
                curve = rounds[len(rounds) // 2]["latency_curve"]
                millis, shares = zip(*((at, share) for at, share in curve if share <= _LARGEST_SHOWN), strict=True)
                axes.plot(millis, shares, color=colour, label=server)
        axes.set_xscale("log")
        # Stretches what is slow, and shows it in the same order as percentiles are told.
        axes.set_yscale("logit")
        axes.set_ylim(0.05, _LARGEST_SHOWN)
        axes.set_yticks(_SHARES, [f"{share:.4g} %" for share in (100 * share for share in _SHARES)])
        axes.minorticks_off()
        return _save(figure, axes, file)

    return draw


def memory(results: Results, file: Path) -> bool:
    """Peak resident memory by what the table holds."""
    figure, axes = _sheet("Peak resident memory", "", "MiB")
    tables = [name for name in _TABLES if name in results.workloads()]
    servers = [name for name in _COLOURS if any(results.records(workload, name) for workload in tables)]
    width = 0.8 / max(len(servers), 1)
    for number, server in enumerate(servers):
        bars = [
            (at + number * width, statistics.median(map(peak_mib, rounds)))
            for at, workload in enumerate(tables)
            if (rounds := results.records(workload, server))
        ]
        places, heights = zip(*bars, strict=True)
        shown = axes.bar(places, heights, width, color=_COLOURS[server], label=server)
        axes.bar_label(shown, fmt="{:.0f}", fontsize="small")
    names = [results.about(workload).table.replace(" x ", "\nx ") for workload in tables]
    axes.set_xticks([at + width * (len(servers) - 1) / 2 for at in range(len(tables))], names)
    return _save(figure, axes, file)


def watchers(results: Results, file: Path) -> bool:
    """How soon watchers are told of a change, by their number."""
    figure, axes = _sheet("A change of one topic, until its watchers have it", "watchers", "milliseconds")
    for engine in _OURS:
        for name, style in (("median", "--"), ("p99", "-")):
            points = [
                (count, statistics.median(values))
                for count in _WATCHERS
                if (
                    values := results.figure(
                        "watchers", f"{engine}: {count:,} watchers of one topic", f"one topic changes: told, {name}"
                    )
                )
            ]
            if len(points) > 1:
                counts, millis = zip(*points, strict=True)
                axes.plot(counts, millis, style, marker="o", color=_COLOURS[engine], label=f"{engine}, {name}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(_WATCHERS, [f"{count:,}" for count in _WATCHERS])
    return _save(figure, axes, file)


PLOTS = [
    Plot("throughput", "Lookups per second by the number of connections", throughput),
    Plot("latency", "Latency of lookups, 64 connections", latency("lookups", "Lookups as fast as 64 connections can")),
    Plot("steady", "Latency of 2,000 lookups per second", latency("steady", "2,000 lookups per second")),
    Plot(
        "storm", "Latency while brokers register", latency("storm", "500 lookups per second while 32 brokers register")
    ),
    Plot("memory", "Memory by the size of the table", memory),
    Plot("watchers", "Latency of a change by the number of watchers", watchers),
]


def _sheet(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _save(figure: Figure, axes: Axes, file: Path) -> bool:
    if not axes.get_legend_handles_labels()[0]:
        return False
    axes.legend()
    figure.savefig(file, dpi=120)
    return True
