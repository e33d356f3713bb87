"""The pages show what figures.json has, and ratios only to a warm peer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.figures import Figure
from bench.peers.summary import CPU, P99, RATE, figures_of, ratio_of, ratios_of, values_of
from bench.peers.warm import Warm, first_warm
from bench.report import __main__ as report
from bench.report import page, pictures
from bench.report.sections import SECTIONS, engine_of
from bench.report.store import Stored, merge, read, stored


@pytest.mark.parametrize(
    ("speeds", "seconds", "warm"),
    [
        ([], [], None),
        ([100.0], [15.0], None),
        ([100.0, 200.0, 300.0], [15.0] * 3, None),
        ([100.0, 200.0, 209.0], [15.0] * 3, Warm(3, is_steady=True)),
        ([100.0, 200.0, 191.0, 400.0], [15.0] * 4, Warm(3, is_steady=True)),
        ([100.0, 105.0], [15.0] * 2, None),
        ([1.0, 2.0, 3.0], [90.0] * 3, Warm(3, is_steady=False)),
        ([0.0, 0.0], [15.0] * 2, None),
    ],
)
def test_peer_is_warm_once_two_rounds_agree_or_after_three_minutes(
    speeds: list[float], seconds: list[float], warm: Warm | None
) -> None:
    assert first_warm(speeds, seconds) == warm


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


def test_ratio_to_a_peer_that_warmed_up_uses_all_measured_rounds() -> None:
    java = figures(record("java", 100, warm_up=(50.0, 100.0, 101.0)), record("java", 200))
    ratio = ratio_of(values_of(java), "lookups", "native", f"{RATE}, GetTopicRoute")
    assert ratio == (Warm(3, is_steady=True), (3.0, 2.0))


def test_ratio_to_a_peer_that_got_warm_while_measured_leaves_out_cold_rounds() -> None:
    java = figures(record("java", 100, warm_up=(50.0,)), record("java", 101))
    ratio = ratio_of(values_of(java), "lookups", "native", f"{RATE}, GetTopicRoute")
    assert ratio == (Warm(3, is_steady=True), (400 / 101,))


def test_cold_peer_gives_no_ratio() -> None:
    java = figures(record("java", 100, warm_up=(50.0,)), record("java", 200))
    assert ratio_of(values_of(java), "lookups", "native", f"{RATE}, GetTopicRoute") == (None, ())
    assert ratios_of(java) == []


def test_rounds_that_are_missing_give_no_ratio() -> None:
    java = figures(record("java", 100, warm_up=(100.0, 100.0)))
    assert ratio_of(values_of(java), "lookups", "native", f"{RATE}, GetTopicRoute").values == ()


def test_ratios_of_costs_are_above_one_where_the_own_server_is_better() -> None:
    java = figures(record("java", 100, 4.0, warm_up=(100.0, 100.0)), record("java", 100, 1.0))
    found = {(ratio.workload, ratio.name): ratio.values for ratio in ratios_of(java)}
    title = "lookups: native compared with java"
    assert found[title, f"{RATE}, GetTopicRoute"] == (3.0, 4.0)
    assert found[title, f"{P99}, GetTopicRoute"] == (2.0, 0.5)
    assert found[title, CPU] == pytest.approx((3.0, 4.0))


def test_merged_sections_replace_only_themselves(tmp_path: Path) -> None:
    file = tmp_path / "results" / "figures.json"

    def measured(section: str, value: float) -> list[Stored]:
        return stored(section, f"measure {section}", [(Figure(section, "rate", "1/s", (value,)), "native 1")])

    merge(file, [*measured("storm", 1.0), *measured("lookups", 2.0)])
    merge(file, measured("storm", 3.0))
    assert [(one.section, one.figure.values, one.command) for one in read(file)] == [
        ("lookups", (2.0,), "measure lookups"),
        ("storm", (3.0,), "measure storm"),
    ]
    assert all(one.commit and one.machine and one.engine and one.date for one in read(file))


def shown(block: str, *java: dict[str, Any]) -> str:
    stored_figures = [
        Stored("lookups", *figure, engine="native 1", command="measure", commit="abc", machine="m", date="d")
        for figure in figures(*java)
    ]
    return page.rendered(f"text\n<!-- figures: {block} -->\nold\n<!-- /figures -->\nmore\n", stored_figures)


def test_page_names_the_warm_round_beside_the_ratio() -> None:
    text = shown("at-a-glance", record("java", 100, warm_up=(50.0, 100.0, 101.0)), record("java", 200))
    assert (
        "| 350/s (300 to 400), p99 2 ms | 150/s (100 to 200), p99 2 ms | 2.50 (2.00 to 3.00) times (round 3, " in text
    )
    assert "old" not in text
    assert text.startswith("text\n<!-- figures: at-a-glance -->\n| ")
    assert text.endswith("|\n<!-- /figures -->\nmore\n")


def test_page_has_the_rate_without_a_ratio_if_java_was_never_warm() -> None:
    text = shown("readme", record("java", 100, warm_up=(50.0,)), record("java", 200))
    assert "| 350/s (300 to 400); no ratio, Java was not warm |" in text
    assert "not measured" in text


def test_block_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError):
        shown("at-a-glimpse")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.00123, "0.00123"), (2.5, "2.5"), (99.96, "100"), (54_124.0, "54,100")]
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert page.rounded(value) == text


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


@pytest.mark.usefixtures("_native_version")
def test_section_that_fails_costs_no_other_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"

    def fail(_: object) -> list[Figure]:
        raise TimeoutError("too late")

    monkeypatch.setattr(report, "native_problem", lambda: None)
    monkeypatch.setitem(SECTIONS, "storm", fail)
    monkeypatch.setitem(SECTIONS, "memory", lambda _: [Figure("memory", "peak", "MiB", (1.0,))])
    with pytest.raises(SystemExit, match=r"not measured: python -m bench\.report --only storm"):
        report.main(["--only", "storm", "memory", "--json", str(file)])
    assert [one.section for one in read(file)] == ["memory"]
    assert "storm failed: TimeoutError: too late" in capsys.readouterr().err
