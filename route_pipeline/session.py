"""The Spark session, with settings that suit the pipeline on one machine as well as on a cluster."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from route_pipeline.data_source import register
from route_pipeline.spark_errors import SPARK_ERRORS, one_line

_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python program that it starts."""

_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def spark_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Starts Spark with the format ``namesrv`` registered, and with workers that run this Python.

    ``with spark_session() as spark`` stops it at the end. Call it before this process does anything with gRPC: Spark
    forks to start Java, and a fork while gRPC's threads run can die before Java starts.

    Args:
        master: Spark's master URL, such as ``local[*]`` or ``spark://host:7077``. Default: that of spark-submit if
            it started this program, else ``local[*]``.
        conf: Spark settings that win over those of the pipeline.

    Raises RuntimeError, in one line, if Spark does not start, or runs already with another Python.
    """
    if master is None and _GATEWAY not in os.environ:
        master = "local[*]"
    settings: dict[str, bool | float | int | str | None] = {**_settings(master or ""), **(conf or {})}
    builder = SparkSession.builder.appName("route-pipeline").config(map=settings)
    try:
        spark = (builder if master is None else builder.master(master)).getOrCreate()
    except SPARK_ERRORS as error:
        raise RuntimeError(
            f"Spark, which needs Java 17 or later, did not start on {master or 'its cluster'}: {one_line(error)}"
        ) from error
    register(spark)
    return spark


def _settings(master: str) -> dict[str, str]:
    settings = {
        "spark.driver.extraJavaOptions": f'"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"',
        "spark.sql.session.timeZone": "UTC",
        # Routes are millions of small rows: Spark's 200 shuffle partitions would be 200 tiny tasks.
        "spark.sql.shuffle.partitions": "8",
        # Spark wants a folder, though nothing here is stored in it; the default is the current folder.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "route-pipeline-warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        # The machine's own name may resolve to no address of it, as in containers.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Spark's workers run the first python3 on PATH otherwise, which need not have this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # Java asks for the machine's own name before it reads these settings, and ends where that is unknown.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return settings
