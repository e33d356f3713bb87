"""Which sink works with which Spark, and what is said where none does."""

from __future__ import annotations

import pytest

from route_pipeline.log.sinks import SINKS, SinkError, check_sink, session_settings


@pytest.mark.parametrize(("sink", "version"), [("parquet", "4.2.0"), ("parquet", "4.3.0"), ("delta", "4.2.1")])
def test_what_works_is_not_refused(sink: str, version: str) -> None:
    check_sink(sink, version)


@pytest.mark.parametrize(
    ("sink", "version", "problem"),
    [
        ("delta", "4.3.0", "no release of Delta Lake supports Spark 4.3; .* sink delta with PySpark 4.2"),
        ("orc", "4.3.0", "sink 'orc' is not one of parquet, delta"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_that_says_what_does(sink: str, version: str, problem: str) -> None:
    with pytest.raises(SinkError, match=problem) as caught:
        check_sink(sink, version)
    assert "\n" not in str(caught.value)


def test_parquet_needs_nothing_of_spark() -> None:
    assert session_settings(SINKS[0], None) == {}


def test_delta_lake_is_fetched_unless_it_is_given_or_spark_was_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    fetched = session_settings("delta", None, "4.2.0")
    assert fetched["spark.jars.packages"].startswith("io.delta:delta-spark_4.2_2.13:")
    given = session_settings("delta", "a.jar,b.jar", "4.2.0")
    assert given["spark.jars"] == "a.jar,b.jar"
    assert "spark.jars.packages" not in given
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    submitted = session_settings("delta", None, "4.2.0")
    assert submitted.keys() == {"spark.sql.extensions", "spark.sql.catalog.spark_catalog"}
