"""The history that the pipeline computes, as the model of :mod:`tests.support.routes.fleet_life` tells its own."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from route_pipeline.log.history import history
from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog
from tests.support.routes.fleet_life import Moment, State, Version, content_of


def versions_of(spark: SparkSession, log: RouteLog) -> list[Version]:
    """All versions in the log."""
    rows = history(read_changes(spark, log)).withColumns(
        {"from_millis": F.unix_millis("valid_from"), "to_millis": F.unix_millis("valid_to")}
    )
    return [
        Version(
            namesrv=row["namesrv"],
            table=row["table_name"],
            key=row["key"],
            content=content_of(row["table_name"], row),
            from_point=(row["valid_from_epoch"], row["valid_from_revision"]),
            from_millis=row["from_millis"],
            to_point=None if row["end_reason"] is None else (row["valid_to_epoch"], row["valid_to_revision"]),
            to_millis=row["to_millis"],
            end_reason=row["end_reason"],
        )
        for row in rows.collect()
    ]


def state_at(versions: list[Version], namesrv: str, moment: Moment) -> State:
    """What the history says that a name server held at one of its revisions."""
    point = (moment.epoch, moment.revision)
    return {
        (version.table, version.key): version.content
        for version in versions
        if version.namesrv == namesrv
        and version.from_point <= point
        and (version.to_point is None or point < version.to_point)
    }
