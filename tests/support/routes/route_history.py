"""The history that the pipeline computes, as the model of :mod:`tests.support.routes.fleet_life` tells its own."""

from __future__ import annotations

from datetime import datetime

from route_pipeline.log.place import Place
from route_pipeline.questions import questions
from tests.support.routes.fleet_life import Version, content_of


def versions_of(place: Place) -> list[Version]:
    """All versions in the log."""
    with questions(place) as asked:
        rows = asked.ask("from history")
    return [
        Version(
            namesrv=row["namesrv"],
            table=row["table_name"],
            key=row["key"],
            content=content_of(row["table_name"], row),
            from_point=(row["valid_from_epoch"], row["valid_from_revision"]),
            from_millis=_millis(row["valid_from"]),
            to_point=None if row["end_reason"] is None else (row["valid_to_epoch"], row["valid_to_revision"]),
            to_millis=None if row["valid_to"] is None else _millis(row["valid_to"]),
            end_reason=row["end_reason"],
        )
        for row in rows
    ]


def _millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
