"""What a log of the pipeline holds, for Spark and for Arrow: ``python -m tests.faults.fleet.pipeline_log FOLDER``.

Prints a line of JSON for each reader and each life of a name server. A program of its own, because Spark must start
before gRPC does.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.dataset as ds

from route_pipeline.log.log_reader import read_changes
from route_pipeline.log.protocol.route_log import RouteLog, files
from route_pipeline.session import QUICK_START, spark_session

COLUMNS = (
    *("namesrv", "epoch", "revision", "from_snapshot", "table_name", "key", "op", "after_revision", "reason"),
    *("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag", "broker_addrs", "filter_servers"),
    *("broker_name", "broker_id", "data_version_counter"),
)


CONTENT = {
    "topic_queues": ("read_queue_nums", "write_queue_nums", "perm", "topic_sys_flag"),
    "broker_groups": ("broker_addrs",),
    "brokers": ("broker_name", "broker_id", "data_version_counter"),
    "filter_servers": ("filter_servers",),
    "reads": ("after_revision",),
}
"""The compared columns of a row that puts something, by its table; of one that removes something it is the reason."""


def lines(reader: str, rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """What a reader finds, a line for each life of a name server."""
    lives: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows:
        what = [row[name] for name in ("revision", "from_snapshot", "table_name", "key", "op")]
        columns = ("reason",) if row["op"] == "remove" else CONTENT.get(row["table_name"], ())
        lives[row["namesrv"], row["epoch"]].append([*what, [row[name] for name in columns]])
    for (server, epoch), found in sorted(lives.items()):
        yield json.dumps({"reader": reader, "server": server, "epoch": epoch, "rows": found}) + "\n"


def main(folder: str) -> None:
    """Reads the log twice."""
    store = RouteLog.open(folder)
    with spark_session("local[2]", QUICK_START) as spark:
        rows = read_changes(spark, store).select(*COLUMNS).collect()
        sys.stdout.writelines(lines("Spark", (row.asDict(recursive=True) for row in rows)))
    table = ds.dataset(files(store.url)).to_table(columns=list(COLUMNS))
    sys.stdout.writelines(lines("Arrow", table.to_pylist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
