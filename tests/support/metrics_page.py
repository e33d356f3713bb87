"""The HTTP page of a program: metrics for Prometheus, whether it is alive and ready."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Process


def get(endpoint: str, path: str) -> tuple[int, str]:
    """Status and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{endpoint}{path}", timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(endpoint: str) -> dict[tuple[str, ...], float]:
    """Values of metrics by name and label values."""
    status, text = get(endpoint, "/metrics")
    assert status == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample_of(process: Process, line: str) -> float:
    """The value of one sample of a name server, by its name and labels as the page has them; 0 if it is not there."""
    _, text = get(process.wait_for("namesrv_started")["metrics"], "/metrics")
    found = [row for row in text.splitlines() if row.startswith(f"{line} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0
