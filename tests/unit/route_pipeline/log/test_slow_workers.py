"""A query is started again for one reason only."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from route_pipeline.log.ingest import STARTS, patiently

TOO_SLOW = "terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class Query:
    """Fails with these texts one after the other, then ends well."""

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)
        self.starts = 0

    def __call__(self) -> None:
        self.starts += 1
        if self._texts:
            raise PySparkException(self._texts.pop(0))


def test_a_query_whose_worker_started_too_slowly_is_started_again() -> None:
    query = Query(TOO_SLOW, TOO_SLOW)
    patiently(query, wait_seconds=0)
    assert query.starts == 3


def test_it_is_given_up_after_a_few_starts_with_the_error_itself() -> None:
    query = Query(*[TOO_SLOW] * 9)
    with pytest.raises(PySparkException, match="failed to connect back"):
        patiently(query, wait_seconds=0)
    assert query.starts == STARTS


def test_any_other_failure_is_final() -> None:
    query = Query("no name server answers")
    with pytest.raises(PySparkException, match="no name server answers"):
        patiently(query, wait_seconds=0)
    assert query.starts == 1
