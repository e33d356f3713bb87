"""The pages show what figures.json has, and ratios only to a warm peer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.figures import Figure
from bench.peers.summary import figures_of
from bench.report import page, pictures
from bench.report.sections import SECTIONS, engine_of
from bench.report.store import read


def record(server: str, calls: int, p99: float = 2.0, warm_up: tuple[float, ...] = ()) -> dict[str, Any]:
    """A run of one second."""
    latency = {"p50": 1.0, "p95": 2.0, "p99": p99, "p99_9": 4.0}
    tally = {"calls": calls, "errors": {}, "bytes_received": 100, "latency_ms": latency}
    return {
        "workload": "lookups",
        "server": server,
        "seconds": 1.0,
        "speed": float(calls),
        "warm_up": [(speed, 15.0) for speed in warm_up],
        "fill_seconds": 0.5,
        "server_cpu_seconds": 0.5,
        "load_cpu_seconds": 0.1,
        "server_peak_memory_bytes": 2**20,
        "groups": {"clients": {"unanswered": 0, "last_answer_seconds": 1.0, "kinds": {"GetTopicRoute": tally}}},
    }


OWN = [record("native", 300), record("native", 400)]


def figures(*java: dict[str, Any]) -> list[Figure]:
    return figures_of([*OWN, *java])


@pytest.mark.parametrize("file", page.PAGES, ids=lambda file: file.name)
def test_page_shows_what_figures_json_has(file: Path) -> None:
    before = file.read_text()
    assert page.rendered(before, read()) == before, "run: python -m bench.report --render"


def test_performance_page_is_short_and_has_every_figure() -> None:
    text = (page.ROOT / "docs/performance.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "not measured" not in text
    assert set(re.findall(r"<!-- figures: ([a-z-]+) -->", text)) == page.BLOCKS.keys() - {
        "readme",
        "failures",
        "detection",
    }


def test_figures_json_has_all_sections_with_their_origin() -> None:
    measured = read()
    assert {one.section for one in measured} == SECTIONS.keys()
    for one in measured:
        assert one.values, one
        assert all((one.engine, one.command, one.commit, one.machine, one.date)), one


@pytest.mark.usefixtures("_native_version")
@pytest.mark.parametrize(
    ("workload", "engine"),
    [
        ("lookups: java", "Apache RocketMQ 5.5.0"),
        ("lookups: null", "null server"),
        ("lookups: native+tls", "native 1.2"),
        ("native: 1,000 watchers of one topic", "native 1.2"),
        ("follow, a batch each second", "native 1.2"),
    ],
)
def test_figures_name_their_engine(workload: str, engine: str) -> None:
    assert engine_of(Figure(workload, "rate", "1/s", (1.0,))) == engine


@pytest.fixture
def _native_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.report.sections.version", lambda _: "1.2")


def test_pictures_are_drawn_from_figures_json(tmp_path: Path) -> None:
    pictures.draw(read(), tmp_path)
    drawn = {file.name for file in tmp_path.iterdir()}
    assert drawn == {file.name for file in pictures.FOLDER.glob("performance-*.png")}
    linked = set(re.findall(r"\(pictures/(performance-\w+\.png)\)", (page.ROOT / "docs/performance.md").read_text()))
    assert linked == drawn
