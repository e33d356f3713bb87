"""A page of the newest figures, with plots: ``python -m bench.report``.

It judges nothing that a reader cannot see: each line of the table has the target, what was measured, and its command.
What figures mean, the losing ones first of all, is written by hand: ``docs/performance.notes.md``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figures import progress, shown
from bench.page_block import BLOCKS
from bench.peers.measure import UNPINNED
from bench.report import pipeline
from bench.report.plots import PLOTS
from bench.report.results import Results
from bench.report.targets import TARGETS

_DOCS = Path(__file__).parents[2] / "docs"
_NOTES = _DOCS / "performance.notes.md"
_MISSING = "not measured"


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the JSON files, writes the page and its pictures."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description="Writes a page of the newest figures.")
    parser.add_argument("--results", type=Path, required=True, help="folder with the JSON files of the programs")
    parser.add_argument("--to", type=Path, required=True, help="the page; pictures go beside it")
    options = parser.parse_args(arguments)
    results = Results(options.results)
    options.to.parent.mkdir(parents=True, exist_ok=True)
    pictures = [*_draw(results, options.to.parent / "pictures")]
    page = "\n".join(_page(results, pictures)) + "\n"
    before = options.to.read_text() if options.to.exists() else ""
    for kind in BLOCKS:
        if block := kind.found_in(before):
            page = kind.put_into(page, block)
    options.to.write_text(page)
    progress(f"report: {options.to} and {len(pictures)} pictures")


def _draw(results: Results, folder: Path) -> Iterator[tuple[str, str]]:
    """Draws what there are figures for; gives each picture's title and file name."""
    folder.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        file = folder / f"performance-{plot.name}.png"
        if plot.draw(results, file):
            yield plot.title, file.name


def _page(results: Results, pictures: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "# Performance\n"
    yield "<!-- Written by `python -m bench.report`; what is explained stands in performance.notes.md. -->\n"
    yield from _machine(results)
    yield "## Targets\n"
    yield from _targets(results)
    yield _NOTES.read_text()
    yield from pipeline.lines_of(results)
    yield "## Servers side by side\n"
    yield from _servers(results)
    for workload in results.workloads():
        yield from _workload(results, workload)
    if pictures:
        yield "## Plots\n"
    for title, name in pictures:
        yield f"![{title}](pictures/{name})\n"


def _machine(results: Results) -> Iterator[str]:
    facts = results.machine()
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    yield (
        f"Measured {facts['date']} on {facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python"
        f" {facts['python']}, {packages}; commit {facts['commit']}, seed {facts['seed']}. `make bench-full` measures"
        " all of it again, `make bench` a part in some minutes. The raw values of each round are in `bench/results`.\n"
    )


def _targets(results: Results) -> Iterator[str]:
    yield "| figure | target | measured | reached | spread | command |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for target in TARGETS:
        for line in target.lines(results):
            spread = f"{shown(min(line.values))} to {shown(max(line.values))}"
            reached = "yes" if line.is_reached else "**no**"
            if line.is_reached is None:
                reached = "(no target)"
            measured = f"{shown(line.median)} {line.unit}"
            cells = (f"{target.figure}: {line.what}", target.text, measured, reached, spread, f"`{target.command}`")
            yield f"| {' | '.join(cells)} |"
        if not target.lines(results):
            yield f"| {target.figure} | {target.text} | {_MISSING} | | | `{target.command}` |"
    yield ""


def _servers(results: Results) -> Iterator[str]:
    yield "| server | what it is |"
    yield "| --- | --- |"
    for name, text in results.servers().items():
        yield f"| {name} | {text} |"
    yield ""


def _workload(results: Results, workload: str) -> Iterator[str]:
    """One table: a line for each server and kind of call."""
    about = results.about(workload)
    pinned = workload.removesuffix(UNPINNED)
    command = f"python -m bench.peers --workload {pinned}{'' if pinned == workload else ' --unpinned'}"
    yield f"### {workload}\n"
    yield f"{about.table}: {about.says}. `{command}`, {about.date}, commit {about.commit}\n"
    yield "| server | call | answers/s | p50 ms | p95 ms | p99 ms | p99.9 ms | CPU µs a call | peak MiB | errors |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in results.rows(workload):
        numbers = (row.rate, row.p50, row.p95, row.p99, row.p99_9, row.cpu_micros, row.peak_mib)
        errors = ", ".join(f"{count} {error}" for error, count in row.errors.items()) or "0"
        yield f"| {row.server} | {row.kind} | {' | '.join(map(shown, numbers))} | {errors} |"
    yield ""


if __name__ == "__main__":
    main()
