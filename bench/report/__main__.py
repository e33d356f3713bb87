"""Measures the figures of all pages and renders the pages: ``python -m bench.report``.

::

    python -m bench.report                            # everything, on a machine that does nothing else
    python -m bench.report --only lookups storm       # these sections; the file keeps the others
    python -m bench.report --render                   # only the pages and pictures, from the file
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.awake import processors_awake
from bench.figures import progress
from bench.load import open_many_files
from bench.report import pictures
from bench.report.page import COMMAND, PAGES, rendered
from bench.report.sections import QUICK, SECTIONS, Effort, engine_of
from bench.report.store import FILE, merge, read, stored
from namesrv.engines.factory import native_problem


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, section by section, and renders."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[*SECTIONS], metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="one short round of each, to show that it runs")
    parser.add_argument("--scale", type=float, default=1.0, help="for a trial: size of the tables")
    parser.add_argument("--json", type=Path, default=FILE, help="for a trial: another file; pages are not rendered")
    parser.add_argument("--render", action="store_true", help="measure nothing; render pages and pictures")
    options = parser.parse_args(arguments)
    failed = [] if options.render else _measure(options)
    if options.json == FILE:
        render()
    if failed:
        raise SystemExit(f"not measured: {COMMAND} {' '.join(failed)}")


def _measure(options: argparse.Namespace) -> list[str]:
    """Measures sections, and writes each as soon as it is measured; returns those that failed."""
    if (problem := native_problem()) is not None:
        raise SystemExit(f"{problem}: run make engine")
    effort = (QUICK if options.quick else Effort())._replace(scale=options.scale)
    failed = []
    open_many_files()
    for name in options.only:
        progress(f"== {name}")
        began = time.monotonic()
        try:
            with processors_awake():
                figures = SECTIONS[name](effort)
        except Exception as error:  # noqa: BLE001 - the other sections are still worth their time
            progress(f"{name} failed: {type(error).__name__}: {error}")
            failed.append(name)
            continue
        command = f"{COMMAND} {name}{' --quick' * options.quick}"
        merge(options.json, stored(name, command, ((figure, engine_of(figure)) for figure in figures)))
        progress(f"{name} took {time.monotonic() - began:.0f} s")
    return failed


def render() -> None:
    """Renders all pages and pictures from figures.json."""
    figures = read()
    for page in PAGES:
        before = page.read_text()
        if (after := rendered(before, figures)) != before:
            page.write_text(after)
            progress(f"rendered {page.name}")
    pictures.draw(figures)


if __name__ == "__main__":
    # Otherwise the servers would outlive a program that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before all was measured"))
    main()
