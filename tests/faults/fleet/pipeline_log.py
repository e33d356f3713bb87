"""What a log of the pipeline holds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from route_pipeline.log.place import Place
from route_pipeline.questions import questions

CONTENT = {
    "topic_queues": ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag"),
    "broker_groups": ("broker_addrs",),
    "brokers": ("broker_name", "broker_id", "data_version_counter"),
    "filter_servers": ("filter_servers",),
    "reads": ("after_revision",),
}
"""The compared columns of a row that puts something, by its table; of one that removes something it is the reason."""


def lives_of(place: Place) -> list[dict[str, Any]]:
    """The rows of each life of a name server."""
    lives: dict[tuple[str, str], list[Any]] = defaultdict(list)
    with questions(place) as asked:
        rows = asked.ask("from log where kind in ('changes', 'reads') and op <> 'kept'")
    for row in rows:
        what = [row[name] for name in ("revision", "from_snapshot", "table_name", "key", "op")]
        columns = ("reason",) if row["op"] == "remove" else CONTENT.get(row["table_name"], ())
        lives[row["namesrv"], row["epoch"]].append([*what, [row[name] for name in columns]])
    return [{"server": server, "epoch": epoch, "rows": found} for (server, epoch), found in sorted(lives.items())]
