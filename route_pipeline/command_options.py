"""Options and arguments that several commands of ``route-pipeline`` share."""

from __future__ import annotations

from typing import Annotated

import typer

from groundwork.json_lines import LogFormat
from route_pipeline.source.options import MAX_TIMEOUT_SECONDS

Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master; else that of spark-submit, else local[*].")
]
Namesrv = Annotated[list[str], typer.Option(help="Name servers, 'host:port,host:port'; may be repeated.")]
Out = Annotated[
    str,
    typer.Option(
        metavar="LOG", help="Path or URL of the log: file:, s3://, gs://, abfss://, hdfs://. Made if need be."
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=1, max=MAX_TIMEOUT_SECONDS, help="For one stream of one name server.")
]
Option = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="An option of the data source, such as onCompacted=resync; repeatable."),
]
Sink = Annotated[
    str, typer.Option(metavar="FORMAT", help="parquet; or delta: besides, LOG/delta is the log as a Delta table.")
]
Jars = Annotated[
    str | None, typer.Option(metavar="FILE,FILE", help="Delta Lake, if Spark is not to fetch it from Maven Central.")
]
Lines = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="ROUTE_PIPELINE_LOG_FORMAT",
        help="text, or json: a line is an object. Spark's own lines are as its log4j2.properties say.",
    ),
]
Log = Annotated[str, typer.Argument(metavar="LOG", help="Path or URL that ingest wrote to.")]
