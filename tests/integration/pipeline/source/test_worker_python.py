"""The check of the Python that Spark's workers run."""

from __future__ import annotations

import sys

import pytest

from route_pipeline.worker_python import check_worker_python


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_a_python_without_the_package_is_refused_with_what_to_set(python: str) -> None:
    check_worker_python(sys.executable)
    with pytest.raises(
        RuntimeError, match=f"run '{python}', which does not start or lacks route_pipeline, grpc"
    ) as caught:
        check_worker_python(python)
    assert "\n" not in str(caught.value)
    assert "os.environ['PYSPARK_PYTHON'] = sys.executable" in str(caught.value)
