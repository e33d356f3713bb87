"""The HTTP page of a program: metrics for Prometheus, whether it is alive and ready."""

from __future__ import annotations

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT = 20.0


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
