"""What the database of a name server holds, read while the name server uses it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def stored(data_dir: Path, table: str) -> dict[str, str]:
    """The rows of a durable table, value by key."""
    with closing(sqlite3.connect(f"file:{data_dir}/namesrv.db?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT key, value FROM durable WHERE name = ?", (table,)))
