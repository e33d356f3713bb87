"""The questions about the past name every column of the route log."""

from __future__ import annotations

import re
from pathlib import Path

from route_pipeline import questions
from route_pipeline.schemas import CHANGE_COLUMNS

OF_THE_LOG = {"op", "from_snapshot", "changed_at", "epoch", "revision", "reason", "after_revision", "warm"}
"""Columns about a change, which the history has as the beginning or the end of a version, or not at all."""
OF_THE_KEY = {"namesrv", "snapshot", "table_name", "key", "topic", "cluster_name", "broker_addr"}
RENEWED = {"generation", "has_channel"}
"""Columns that change with each registration, and begin no version."""


def test_every_column_is_in_the_history_and_another_value_begins_a_version() -> None:
    columns = {column.name for column in CHANGE_COLUMNS} - OF_THE_LOG
    views = (Path(questions.__file__).parent / "sql" / "views.sql").read_text(encoding="utf-8")
    (history,) = re.findall(r"select namesrv, table_name, key,.*?from followed", views, re.DOTALL)
    assert columns <= set(re.findall(r"\w+", history))
    assert set(re.findall(r"\w+", questions._CONTENT)) == columns - OF_THE_KEY - RENEWED
