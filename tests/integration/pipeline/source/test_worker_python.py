"""The check of the Python that Spark's workers run."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from route_pipeline.data_source import register
from route_pipeline.worker_python import check_worker_python


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_a_python_without_the_package_is_refused_with_what_to_set(python: str) -> None:
    check_worker_python(sys.executable)
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(pythonExec=python))
    problem = f"run '{python}', which does not start or lacks route_pipeline, grpc"
    with pytest.raises(RuntimeError, match=problem) as caught:
        register(session)
    assert "\n" not in str(caught.value)
    assert "os.environ['PYSPARK_PYTHON'] = sys.executable" in str(caught.value)
