"""Pictures of a soak: what processes held, how long lookups took and how late event loops were, over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.faults.history import Record, of_kind

WIDTH_INCHES, HEIGHT_INCHES, DPI = 9.0, 3.4, 110
LINE = 1.0
FAULT_COLOUR = "0.9"

Points = Sequence[tuple[float, float]]


def held(records: list[Record], what: str, scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
    """What each process held of something, by its name: minutes and values, and a gap (nan) where it was replaced."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    pids: dict[str, int] = {}
    for record in of_kind(records, "sample"):
        name, minute = record["name"], record["at"] / 60
        if pids.get(name) != record["pid"]:  # it may have just been started, and hold next to nothing
            series[name].append((minute, float("nan")))
            pids[name] = record["pid"]
        else:
            series[name].append((minute, record[what] * scale))
    return series


def latencies(records: list[Record]) -> dict[str, list[tuple[float, float]]]:
    """Median, ninth of ten and slowest lookup of each minute, in milliseconds, all name servers together."""
    by_minute: dict[int, list[float]] = defaultdict(list)
    for record in of_kind(records, "lookup"):
        by_minute[int(record["at"] // 60)].append((record["at"] - record["began"]) * 1000)
    rows = [(minute + 0.5, sorted(values)) for minute, values in sorted(by_minute.items())]
    return {
        "median": [(minute, values[len(values) // 2]) for minute, values in rows],
        "9 of 10 within": [(minute, values[len(values) * 9 // 10]) for minute, values in rows],
        "slowest": [(minute, values[-1]) for minute, values in rows],
    }


def lags(records: list[Record]) -> dict[str, list[tuple[float, float]]]:
    """Longest delay of each event loop within a minute, in milliseconds."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for record in of_kind(records, "lag"):
        series[record["server"]].append((record["at"] / 60, record["millis"]))
    return series


def _fault_spans(records: list[Record]) -> Iterable[tuple[float, float]]:
    for record in of_kind(records, "fault"):
        if record["event"] == "begins":
            yield record["at"] / 60, (record["at"] + record["seconds"]) / 60


def _picture(path: Path, records: list[Record], label: str, draw: Callable[[Axes], object]) -> None:
    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    axes = figure.subplots()
    for begin, end in _fault_spans(records):
        axes.axvspan(begin, end, color=FAULT_COLOUR, linewidth=0)
    draw(axes)
    axes.set_xlabel("minutes (grey: a fault)")
    axes.set_ylabel(label)
    axes.grid(visible=True, alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="x-small")
    figure.savefig(path, dpi=DPI)


def _lines(series: Mapping[str, Points]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for name, points in sorted(series.items()):
            axes.plot([at for at, _ in points], [value for _, value in points], label=name, linewidth=LINE)
        axes.set_ylim(bottom=0)

    return draw


def _logarithmic(series: Mapping[str, Points]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for name, points in sorted(series.items()):
            axes.plot([at for at, _ in points], [value for _, value in points], label=name, linewidth=LINE)
        axes.set_yscale("log")

    return draw


def draw_all(records: list[Record], folder: Path) -> None:
    """Draws soak-memory.png, soak-files.png, soak-latency.png and soak-lag.png."""
    folder.mkdir(parents=True, exist_ok=True)
    _picture(folder / "soak-memory.png", records, "resident memory, MiB", _lines(held(records, "rss_kib", 1 / 1024)))
    _picture(folder / "soak-files.png", records, "open files", _lines(held(records, "files")))
    _picture(folder / "soak-latency.png", records, "lookup, ms", _logarithmic(latencies(records)))
    _picture(folder / "soak-lag.png", records, "event loop delay, ms", _logarithmic(lags(records)))
