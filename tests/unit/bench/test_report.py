"""The page of figures says what was measured beside what was wanted, and what was not measured."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.figures import machine
from bench.report import __main__


def record(workload: str, server: str, calls: int, p99: float, cpu: float = 1.0, kind: str = "GetTopicRoute") -> Any:
    """A run of one second."""
    tally = {
        "calls": calls,
        "errors": {},
        "bytes_sent": 1,
        "bytes_received": 1,
        "latency_ms": {"p50": p99 / 4, "p95": p99 / 2, "p99": p99, "p99_9": p99 * 2},
        "latency_curve": [[p99 / 4, 0.5], [p99 / 2, 0.9], [p99, 0.99], [p99 * 2, 1.0]],
    }
    return {
        "workload": workload,
        "server": server,
        "round": 1,
        "measured": {"date": "2026-11-21", "commit": "abc"},
        "table": "a table",
        "says": "what it does",
        "seconds": 1.0,
        "fill_seconds": 0.1,
        "server_cpu_seconds": cpu,
        "load_cpu_seconds": 0.1,
        "server_memory_bytes": 2**20,
        "server_peak_memory_bytes": 2**20 * (300 if server == "java" else 100),
        "groups": {"clients": {"unanswered": 0, "last_answer_seconds": 1.0, "kinds": {kind: tally}}},
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with a few runs."""
    folder = tmp_path_factory.mktemp("measured") / "results"
    folder.mkdir()
    records = [
        record("lookups", "native", calls=40_000, p99=3.0, cpu=0.5),
        record("lookups", "grpcio", calls=4_000, p99=20.0),
        record("lookups", "java", calls=20_000, p99=4.0),
        record("batches", "grpcio", calls=500, p99=40.0, kind="BatchGetTopicRoutes"),
        record("storm-idle", "native", calls=500, p99=1.0),
        record("storm", "native", calls=500, p99=2.5),
        record("lookups-100k-width-4", "native", calls=20_000, p99=3.0),
        record("lookups-100k-width-4", "java", calls=20_000, p99=3.0),
    ]
    servers = {name: f"what {name} is" for name in ("grpcio", "native", "java")}
    (folder / "peers.json").write_text(json.dumps({"machine": machine(), "servers": servers, "records": records}))
    expiry = {"workload": "expiry of 1,000 of 10,000 brokers", "unit": "ms"}
    figures = [
        {**expiry, "name": "all together", "values": [36.0, 37.0, 40.0]},
        {**expiry, "name": "longest time that the event loop is held up", "values": [4.0, 4.5, 4.6]},
    ]
    (folder / "core.json").write_text(json.dumps({"machine": machine(), "figures": figures}))
    figures = pipeline_figures()
    measured = {
        one["workload"]: {
            "date": "2026-11-22",
            "cpu": "a cpu",
            "cores": 2,
            "commit": "old" if "S3" in one["workload"] else "new",
        }
        for one in figures
    }
    (folder / "pipeline.json").write_text(json.dumps({"measured": measured, "figures": figures}))
    return folder


def pipeline_figures() -> list[dict[str, Any]]:
    """Figures of the route pipeline."""
    on_s3, on_disk = (f"1,000 batches {place}" for place in ("on S3", "on a disk"))
    table = "100,000 topics x 1,000 brokers x width"
    found: list[tuple[str, str, list[float]]] = [
        (f"{table} 10: 1,000,000 queue rows", "ingest, again", [400_000, 500_000]),
        (f"{table} 10: 1,000,000 queue rows", "ingest: most memory of Java", [600, 700]),
        (f"{table} 16: 1,600,000 queue rows", "ingest, again", [590_000, 610_000, 620_000]),
        (f"{table} 100: 10,000,000 queue rows", "ingest, again", [1_000_000, 1_000_000]),
        (f"{table} 100: 10,000,000 queue rows", "ingest: most memory of Java", [600, 770]),
        (f"{table} 16: 1,600,000 queue rows, on S3", "ingest, again", [290_000]),
        ("start of an ingest", "the command, on a new log", [7, 8]),
        ("start of an ingest", "the command, on a log of 100,000 batches", [8, 9.5]),
        ("30 topics of one broker, read by a Spark that is up", "first read", [1.5]),
        ("30 topics of one broker, read by a Spark that is up", "read again", [0.4, 0.3, 0.2]),
        ("follow, a batch each second", "from a change to its row", [0.5, 0.7, 0.9]),
        ("follow, a batch each second", "99 of 100 changes, up to", [0.95]),
        (on_disk, "history, before compaction", [4.0]),
        (on_disk, "compact", [3.0]),
        (on_disk, "history, after compaction", [1.0]),
        (on_s3, "history, before compaction", [8.0]),
        (on_s3, "report, before compaction", [12.0]),
    ]
    return [{"workload": one, "name": name, "unit": "s", "values": values} for one, name, values in found]


def written(results: Path, folder: Path) -> Path:
    """The page, in a folder of its own."""
    page = folder / "docs" / "performance.md"
    __main__.main(["--results", str(results), "--to", str(page)])
    return page


@pytest.fixture(scope="module")
def file(results: Path) -> Path:
    """The page's file."""
    return written(results, results.parent)


@pytest.fixture(scope="module")
def page(file: Path) -> str:
    """The page."""
    return file.read_text()


def line(page: str, *words: str) -> str:
    """The only line with all of these words."""
    (found,) = [text for text in page.splitlines() if all(word in text for word in words)]
    return found


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ("| 2 times Java's | yes | 2 to 2 |", ("lookups: native, rate",)),
        ("| 0.75 times Java's | **no** |", ("lookups: native, p99",)),
        ("| 0.2 times Java's | (no target) |", ("lookups: grpcio, rate",)),
        ("| 2.5 times Java's lookups | **no** |", ("BatchGetTopicRoutes: grpcio",)),
        ("| 0.333 times Java's | yes |", ("| memory, ", "native")),
        ("| 2.5 times the idle p99 | **no** |", ("register: native, storm",)),
        ("| 50 µs | **no** |", ("native, 100,000 topics",)),
        ("| 37 ms | **no** | 36 to 40 | `python -m bench.core` |", ("expiry", "all together")),
        ("| 4.5 ms | yes |", ("expiry", "held up")),
        ("| 610,000 rows/s | yes | 590,000 to 620,000 |", ("Spark on two cores: ingest |",)),
        ("| 290,000 rows/s | **no** |", ("Spark on two cores: ingest, on S3",)),
        ("| 1.05 times that of 1,000,000 rows | yes | 1 to 1.1 |", ("10,000,000 rows: Java",)),
        ("| 1.25 s | yes | 1 to 1.5 | `python -m bench.pipeline --only start` |", ("100,000 batches: ",)),
        ("| 0.25 times before's | (no target) |", ("compacted: on a disk, history",)),
        ("| 1.5 s | **no** |", ("in a Spark that is up: first",)),
        ("| 0.3 s | yes |", ("in a Spark that is up: again",)),
        ("| 0.7 s | (no target) | 0.5 to 0.9 |", ("to its row", "p50")),
        ("| 0.95 s | (no target) |", ("to its row", "p99")),
    ],
)
def test_each_target_stands_beside_what_was_measured_and_its_command(
    page: str, cells: str, words: tuple[str, ...]
) -> None:
    assert cells in line(page, *words)


def test_what_was_not_measured_is_said_to_be_so(page: str) -> None:
    assert "not measured" in line(page, "capacity-100k-width-16", "4 times")


def test_the_pipeline_has_a_part_with_a_line_for_each_snapshot_and_question(page: str) -> None:
    part = page.partition("## The route pipeline\n")[2].partition("\n## ")[0]
    assert "| 100,000 topics x 1,000 brokers x width 16: 1,600,000 queue rows, on S3 |  |  |  | 290,000 |" in part
    new, old = (f"2026-11-22 on a cpu, 2 cores, commit {commit}" for commit in ("new", "old"))
    assert re.findall(r"^Measured .*", part, re.MULTILINE) == [
        f"Measured {new}; {old}:",
        f"Measured {new}; {old}:",
        f"Measured {new}:",
    ]
    assert (
        "| 1,000 batches on a disk, before it is compacted | 1,000 batches on a disk, after it is compacted |" in part
    )
    assert "| history | 4 | 1 | 8 |  |" in part
    assert "| report |  |  | 12 |  |" in part
    assert "| the compaction | 3 |  |  |  |" in part
    assert "| start of an ingest | the command, on a new log | 7.5 | 7 to 8 |" in part


def test_a_page_without_the_pipeline_says_that_it_was_not_measured(results: Path, tmp_path: Path) -> None:
    others = shutil.copytree(results, tmp_path / "results", ignore=shutil.ignore_patterns("pipeline.json"))
    page = written(others, tmp_path).read_text()
    assert "## The route pipeline" not in page
    assert "not measured" in line(page, "only counts them")


def test_every_workload_has_a_table_with_a_line_for_each_server(page: str) -> None:
    table = page.partition("### lookups\n")[2].partition("###")[0]
    assert "| native | GetTopicRoute | 40,000 | 0.75 | 1.5 | 3 | 6 | 12.5 | 100 | 0 |" in table
    assert "| java | GetTopicRoute | 20,000 |" in table


def test_pictures_are_drawn_of_what_there_is_and_shown_on_the_page(file: Path, page: str) -> None:
    drawn = sorted(picture.name for picture in (file.parent / "pictures").iterdir())
    assert drawn == ["performance-latency.png", "performance-memory.png", "performance-storm.png"]
    assert all(f"(pictures/{name})" in page for name in drawn)
