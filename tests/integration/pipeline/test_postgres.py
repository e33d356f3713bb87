"""The recipe for PostgreSQL, against a server of Debian's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.changes_to_postgres import append_to, create_table, run
from route_pipeline.schemas import CHANGE_COLUMNS, CHANGES, spark_ddl
from tests.support.programs.processes import eventually
from tests.support.spark_session import spark

__all__ = ["spark"]  # pytest finds the fixture by its name in this module

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
START_SECONDS = 120.0
DEBIAN = "/usr/lib/postgresql"


def tool(name: str) -> str:
    """A program of the server, which Debian keeps off the PATH."""
    found = shutil.which(name) or next(map(str, sorted(Path(DEBIAN).glob(f"*/bin/{name}"), reverse=True)), None)
    if found is None:
        pytest.skip(f"there is no {name}: apt install postgresql")
    return found


@pytest.fixture
def database() -> Iterator[str]:
    """The connection string of a server of its own, which listens on a socket in its folder."""
    initdb, server, _ = tool("initdb"), tool("postgres"), tool("psql")
    user = None
    if os.geteuid() == 0:  # PostgreSQL does not run as root
        user = "nobody"
    with tempfile.TemporaryDirectory(prefix="routes-pg-", dir="/tmp") as folder:
        if user is not None:
            shutil.chown(folder, user)
        data = str(Path(folder, "data"))
        made = subprocess.run(
            [initdb, "-D", data, "-U", "routes", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"],
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        settings = ("listen_addresses=", f"unix_socket_directories={folder}", "fsync=off")
        process = subprocess.Popen(
            [server, "-D", data, *(word for one in settings for word in ("-c", one))],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        connection = f"host={folder} user=routes dbname=postgres"
        try:
            eventually(lambda: _answers(connection), within_seconds=START_SECONDS)
            yield connection
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _answers(connection: str) -> bool:
    with suppress(RuntimeError):
        return run(connection, "SELECT 1;") == "1"
    return False


def changes(spark: SparkSession, *revisions: int) -> DataFrame:
    """A batch: at each revision a broker group with a master came."""
    row = dict.fromkeys(column.name for column in CHANGE_COLUMNS) | {
        "namesrv": "ns-a",
        "epoch": "0001",
        "changed_at": datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC),
        "table_name": "broker_groups",
        "op": "put",
        "from_snapshot": False,
        "key": "c/b",
        "zone_name": "",
        "broker_addrs": [{"broker_id": 0, "broker_addr": "10.0.0.1:10911"}],
    }
    rows = [tuple((row | {"revision": revision}).values()) for revision in revisions]
    return spark.createDataFrame(rows, spark_ddl(CHANGES))


def test_a_batch_that_is_handed_over_again_is_in_the_table_once(spark: SparkSession, database: str) -> None:
    run(database, create_table())
    append = append_to(database)
    for number, revisions in enumerate([(1, 2), (1, 2), (3,)]):
        append(changes(spark, *revisions), number)

    assert run(database, "SELECT count(*), max(revision) FROM changes;") == "3|3"
    told = run(
        database,
        "SELECT broker_addrs::json -> 0 ->> 'broker_addr', changed_at AT TIME ZONE 'UTC', zone_name = '', topic IS NULL"
        " FROM changes WHERE revision = 3;",
    )
    assert told == "10.0.0.1:10911|2026-01-02 12:00:00.000005|t|t"


def test_what_the_database_refuses_fails_the_batch(spark: SparkSession, database: str) -> None:
    with pytest.raises(RuntimeError, match=r'psql: .*relation "changes" does not exist'):
        append_to(database)(changes(spark, 1), 0)
