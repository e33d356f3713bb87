"""Each benchmark runs and prints a figure. No figure is judged here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from bench import report
from tests.support.engines import require_native

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
GENERATING = ("guard", "peers", "report")
"""Those that run the load generator, which cargo compiles."""
BENCHMARKS = [*GENERATING, "core", "clients", pytest.param("pipeline", marks=pytest.mark.spark)]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_prints_a_figure_of_each_of_its_workloads(name: str) -> None:
    require_native()
    if name in GENERATING and shutil.which("cargo") is None:
        pytest.skip("cargo is missing, which compiles the load generator")
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--smoke"],
        env={**os.environ, "LOAD_GENERATOR_PROFILE": "trial"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "min..max" in done.stdout
    assert done.stdout.count("..") > 2, done.stdout


def test_the_page_shows_the_figures_of_the_file() -> None:
    before = report.PAGE.read_text(encoding="utf-8")
    assert report.rendered(before, report.read()) == before, "run: python -m bench.report --render"
