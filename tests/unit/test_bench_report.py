"""The page of figures says what was measured beside what was wanted, and what was not measured."""

from __future__ import annotations

import json
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


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder of results with a few runs."""
    folder = tmp_path / "results"
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
    return folder


def written(results: Path, tmp_path: Path) -> tuple[str, Path]:
    """The page, and the folder of its pictures."""
    page = tmp_path / "docs" / "performance.md"
    __main__.main(["--results", str(results), "--to", str(page)])
    return page.read_text(), page.parent / "pictures"


def line(page: str, *words: str) -> str:
    """The only line with all of these words."""
    (found,) = [text for text in page.splitlines() if all(word in text for word in words)]
    return found


def test_each_target_stands_beside_what_was_measured_and_its_command(results: Path, tmp_path: Path) -> None:
    page, _ = written(results, tmp_path)
    assert "| 2 times Java's | yes | 2 to 2 |" in line(page, "lookups: native, rate")
    assert "| 0.75 times Java's | **no** |" in line(page, "lookups: native, p99")
    assert "| 0.2 times Java's | (no target) |" in line(page, "lookups: grpcio, rate")
    assert "| 2.5 times Java's lookups | **no** |" in line(page, "BatchGetTopicRoutes: grpcio")
    assert "| 0.333 times Java's | yes |" in line(page, "| memory, ", "native")
    assert "| 2.5 times the idle p99 | **no** |" in line(page, "register: native, storm")
    assert "| 50 µs | **no** |" in line(page, "native, 100,000 topics")
    assert "| 37 ms | **no** | 36 to 40 | `python -m bench.core` |" in line(page, "expiry", "all together")
    assert "| 4.5 ms | yes |" in line(page, "expiry", "held up")


def test_what_was_not_measured_is_said_to_be_so(results: Path, tmp_path: Path) -> None:
    page, _ = written(results, tmp_path)
    assert "not measured" in line(page, "capacity-100k-width-16", "4 times")
    assert "not measured" in line(page, "only counts them")


def test_every_workload_has_a_table_with_a_line_for_each_server(results: Path, tmp_path: Path) -> None:
    page, _ = written(results, tmp_path)
    table = page.partition("### lookups\n")[2].partition("###")[0]
    assert "| native | GetTopicRoute | 40,000 | 0.75 | 1.5 | 3 | 6 | 12.5 | 100 | 0 |" in table
    assert "| java | GetTopicRoute | 20,000 |" in table


def test_pictures_are_drawn_of_what_there_is_and_shown_on_the_page(results: Path, tmp_path: Path) -> None:
    page, pictures = written(results, tmp_path)
    drawn = sorted(file.name for file in pictures.iterdir())
    assert drawn == ["performance-latency.png", "performance-memory.png", "performance-storm.png"]
    assert all(f"(pictures/{name})" in page for name in drawn)
