"""The part of the page about the route pipeline: snapshots into a log, questions to one, and what one waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.figures import Figure, shown
from bench.report.results import Results

PROGRAM = "pipeline"

_SNAPSHOTS = (
    ("client rows/s", "Python client that only counts"),
    ("data source rows/s", "data source into Parquet, again"),
    ("ingest rows/s, first", "ingest, first time"),
    ("again", "ingest, again"),
    ("its Python ns a row", "ingest, again: of the Python workers"),
    ("its Java ns a row", "ingest, again: processor time of Java"),
    ("its Python worker MiB", "ingest: of one Python worker"),
    ("its Java MiB", "ingest: most memory of Java"),
)
"""Columns of a table of snapshots, and their figures."""
_BEFORE, _AFTER = (f", {when} compaction" for when in ("before", "after"))


def lines_of(results: Results) -> Iterator[str]:
    """The lines of the part; none if nothing of it was measured."""
    workloads: dict[str, dict[str, Figure]] = {}
    for figure in results.figures(PROGRAM):
        workloads.setdefault(figure.workload, {})[figure.name] = figure
    if not workloads:
        return
    snapshots = {name: figures for name, figures in workloads.items() if "ingest, again" in figures}
    logs = {name: figures for name, figures in workloads.items() if any(_BEFORE in one for one in figures)}
    others = {name: figures for name, figures in workloads.items() if name not in snapshots and name not in logs}
    waits = (
        (one.workload, one.name, shown(one.median), _spread(one)) for each in others.values() for one in each.values()
    )
    measured = results.measured(PROGRAM)
    yield "## The route pipeline\n"
    yield (
        "By `python -m bench.pipeline --json bench/results/pipeline.json`. Name server, Spark and the S3 server share"
        " the cores. [bench/README.md](../bench/README.md#benchpipeline) says what the figures are;"
        " these are medians.\n"
    )
    for titles, rows, names in (
        (("snapshot", *(title for title, _ in _SNAPSHOTS)), _snapshot_rows(snapshots), snapshots),
        (("questions to a log, in s", *_columns(logs)), _question_rows(logs), logs),
        (("what one waits for", "", "s", "spread"), waits, others),
    ):
        if names:
            yield from _when([measured[name] for name in names])
            yield from _table(titles, rows)


def _when(measured: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """When, where and of which commit workloads were measured."""
    said = (f"{one['date']} on {one['cpu']}, {one['cores']} cores, commit {one['commit']}" for one in measured)
    yield f"Measured {'; '.join(dict.fromkeys(said))}:\n"


def _snapshot_rows(snapshots: dict[str, dict[str, Figure]]) -> Iterator[Sequence[str]]:
    for name, figures in snapshots.items():
        yield name, *(shown(figures[one].median) if one in figures else "" for _, one in _SNAPSHOTS)


def _columns(logs: dict[str, dict[str, Figure]]) -> list[str]:
    return [f"{name}{when.removesuffix(' compaction')} it is compacted" for name in logs for when in (_BEFORE, _AFTER)]


def _question_rows(logs: dict[str, dict[str, Figure]]) -> Iterator[Sequence[str]]:
    questions = {one.removesuffix(_BEFORE): None for figures in logs.values() for one in figures if _BEFORE in one}
    for question in questions:
        cells = (figures.get(f"{question}{when}") for figures in logs.values() for when in (_BEFORE, _AFTER))
        yield question, *("" if one is None else shown(one.median) for one in cells)
    seconds = (figures.get("compact") for figures in logs.values())
    yield "the compaction", *(cell for one in seconds for cell in ("" if one is None else shown(one.median), ""))


def _spread(figure: Figure) -> str:
    return f"{shown(min(figure.values))} to {shown(max(figure.values))}"


def _table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"| {' | '.join('---' for _ in titles)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""
