"""The benchmark of watchers runs, with tiny tables and a few watchers. No figure is judged here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench import watchers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo compiles the watchers"),
    # The first one compiles them: two minutes beside other tests.
    pytest.mark.timeout(600),
]

KINDS = ("one topic changes", "50 topics change at once", "the same beside a watch that does not read")
FIGURES = (
    "told, median",
    "told, p99",
    "server CPU, each watcher",
    "last of all told, worst change",
    "event loop, longest delay",
    "event loop, longest time on the processor",
)


def test_every_kind_of_change_is_reported_as_a_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "watchers.json"
    watchers.main(["--topics", "50", "--server", "native", "--json", str(file)])
    report: dict[str, Any] = json.loads(file.read_text())
    names = [figure["name"] for figure in report["figures"]]
    expected = [f"{kind}: {figure}" for kind in KINDS for figure in FIGURES]
    assert names == ["resident memory of the server, each", *expected]
    assert {figure["workload"] for figure in report["figures"]} == {"native: 5 watchers of one topic"}
    assert all(figure["values"][0] > 0 for figure in report["figures"] if "told" in figure["name"])
    shown = capsys.readouterr()
    assert all(name in shown.out for name in names)
    assert "round 1 of 1" in shown.err
