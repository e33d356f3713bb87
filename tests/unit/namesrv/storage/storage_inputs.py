"""What the durable tables may hold, however odd, and a database that is closed after its use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from namesrv.core.model import BrokerKey, HoldKey, Intent, IntentKind, IntentTable, KvConfigTable
from namesrv.storage.database import Database
from namesrv.storage.tables import TABLES

CLOSE_SECONDS = 30.0
"""For the committing thread; never waited for in full."""

MILLIS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=8) | st.sampled_from(["", "\0", "\n", '"', "\\", "größer", "\u2028", "1", "1.0", "null"])
GROUPS = st.builds(BrokerKey, TEXTS, TEXTS)
PERMISSIONS = st.sampled_from([IntentKind.WIPE_WRITE_PERM, IntentKind.ADD_WRITE_PERM])
INTENTS = st.builds(
    Intent, PERMISSIONS, GROUPS, TEXTS, MILLIS, comment=TEXTS, ends_at_millis=st.none() | MILLIS
) | st.builds(
    Intent,
    st.just(IntentKind.TOPIC_HOLD),
    st.builds(HoldKey, TEXTS, st.none() | TEXTS),
    TEXTS,
    MILLIS,
    comment=TEXTS,
    ends_at_millis=st.none() | MILLIS,
)

CONTENTS: dict[str, st.SearchStrategy[Any]] = {
    "kv_config": st.dictionaries(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=4), max_size=3).map(KvConfigTable.of),
    "settings": st.dictionaries(TEXTS, TEXTS, max_size=4),
    "intents": st.lists(INTENTS, max_size=5).map(IntentTable.of),
}
"""Contents by the name of their table."""
EMPTY: dict[str, Any] = {"kv_config": KvConfigTable.of({}), "settings": {}, "intents": IntentTable()}


def stored(database: Database) -> dict[str, object]:
    """The contents of all tables."""
    return {table.name: database.load(table) for table in TABLES}


@contextmanager
def opened(folder: Path) -> Iterator[Database]:
    database = Database(folder)
    try:
        yield database
    finally:
        asyncio.run(database.close(CLOSE_SECONDS))
