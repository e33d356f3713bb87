"""Makes docs/soak.md and its pictures of a soak's history: ``python -m tests.faults.soak.page FOLDER``.

With a second folder, the page and the pictures go there.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

from tests.faults.fleet.fleet import BROKERS, SERVERS, STOCK
from tests.faults.history import Record, of_kind, read_history
from tests.faults.invariants import violations
from tests.faults.nemesis import CLIENTS
from tests.faults.soak.pictures import draw_all, held, latencies

DOCS = Path(__file__).parents[3] / "docs"
PAGE = """\
# Soak

A fleet of {servers} name servers, {agents} agents, {stock} stock broker and {clients} clients ran for {minutes:.0f}
minutes at a modest rate, on one machine, while faults of every kind met its processes and its network at random. Every
lookup, message of a watch, operator's change and fault was recorded, and the record checked against the invariants of
[faults.md](faults.md). {outcome}

```console
$ python -m tests.faults.soak.run --minutes {minutes:.0f}     # prints its seed and where its history is
$ python -m tests.faults.soak.page FOLDER        # makes this page of it
```

| what | how much |
|---|---|
{figures}

Name server 1 is never ended, so that its memory tells of all the time; it is stopped and cut off like the others.

![Resident memory of each process](pictures/soak-memory.png)

![Open files of each process](pictures/soak-files.png)

![Lookups: median, ninth of ten and slowest of each minute](pictures/soak-latency.png)

A lookup that meets a stopped name server waits until that goes on, at most 3 s; those that failed are counted above.

![Delay of each event loop](pictures/soak-lag.png)

The delay of a name server that was stopped is as long as it was stopped: that is how it knows that it was.

## Faults

| fault | times |
|---|---|
{faults}
"""


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _first_and_last(records: list[Record], what: str, scale: float = 1.0) -> str:
    """After the start and at the end, each the median of ten minutes."""
    values = [value for _, value in held(records, what, scale)[SERVERS[0]] if not math.isnan(value)]
    part = max(1, min(60, len(values) // 3))
    first, last = sorted(values[:part])[part // 2], sorted(values[-part:])[part // 2]
    return f"{first:.0f} then, {last:.0f} at the end"


def _cpu(records: list[Record], minutes: float) -> str:
    latest = {(r["name"], r["pid"]): r["cpu_seconds"] for r in of_kind(records, "sample") if "cpu_seconds" in r}
    return f"{sum(latest.values()) / (minutes * 60):.1%} of one core, all processes of the fleet"


def page(records: list[Record]) -> str:
    """The page's text."""
    minutes = records[-1]["at"] / 60
    broken = violations(records)
    faults = Counter(record["name"] for record in of_kind(records, "fault") if record["event"] == "begins")
    medians = sorted(value for _, value in latencies(records)["median"])
    failed = sum(record["who"] == "lookups" for record in of_kind(records, "failed"))
    counts = Counter(record["what"] for record in records)
    figures = [
        ("records", len(records)),
        ("lookups", f"{counts['lookup']:,} of {failed + counts['lookup']:,} answered"),
        ("messages of watches", f"{counts['watch']:,}"),
        ("operators' changes", f"{counts['write']:,}, read back {counts['read']:,} times"),
        ("topic tables", f"{counts['topics']:,}"),
        ("faults", sum(faults.values())),
        ("violations", len(broken)),
        ("median lookup", f"{medians[len(medians) // 2]:.1f} ms"),
        ("memory of name server 1, MiB", _first_and_last(records, "rss_kib", 1 / 1024)),
        ("open files of name server 1", _first_and_last(records, "files")),
        ("threads of name server 1", _first_and_last(records, "threads")),
        ("processor", _cpu(records, minutes)),
    ]
    return PAGE.format(
        servers=len(SERVERS),
        agents=len(BROKERS) - len(STOCK),
        stock=len(STOCK),
        clients=len(CLIENTS),
        minutes=minutes,
        outcome=f"{len(broken)} were broken." if broken else "None was broken.",
        figures="\n".join(_row(*figure) for figure in figures),
        faults="\n".join(_row(name, count) for name, count in sorted(faults.items())),
    )


def main(folder: str, docs: str = str(DOCS)) -> None:
    """Writes the page and the pictures."""
    records = read_history(Path(folder) / "history.jsonl")
    (Path(docs) / "soak.md").write_text(page(records), encoding="utf-8")
    draw_all(records, Path(docs) / "pictures")


if __name__ == "__main__":
    main(*sys.argv[1:])
