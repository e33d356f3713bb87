"""Questions about the past, answered by DuckDB in this process: SQL over the files of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import duckdb
import pyarrow as pa
from deltalake import write_deltalake

from route_pipeline.log.place import HISTORY, LogError, Place, failures

Row = dict[str, Any]

Clock = Literal["wall", "ingest"]
"""By which clock: that of each name server, or that of the machine that wrote the log."""

_SQL = Path(__file__).with_name("sql")


Engine = Literal["duckdb", "spark", "trino"]


class _Engine(NamedTuple):
    """The SQL of an engine, where it differs from the others'."""

    log: str
    """How the view ``log`` is made of a Delta table."""
    route_at: str
    """How a query with two parameters is kept."""
    row: str = "row"
    temporary: str = ""
    topic: str = "of_topic"
    at: str = "asked_at"
    settings: str = ""


_ENGINES: dict[Engine, _Engine] = {
    "duckdb": _Engine(
        "create or replace view log as select * from delta_scan('{table}');",
        "create or replace macro route_at(of_topic, asked_at) as table\n{query};",
    ),
    "spark": _Engine(
        "create or replace temporary view log as select * from delta.`{table}`;",
        "create or replace temporary function route_at(of_topic string, asked_at timestamp)\n"
        "returns table return\n{query};",
        row="struct",
        temporary="temporary",
        settings="-- Else Spark's optimizer infers constraints of the view history for minutes.\n"
        "set spark.sql.constraintPropagation.enabled = false;\n\n",
    ),
    "trino": _Engine(
        "-- log: call system.register_table('SCHEMA', 'log', '{table}')",
        "prepare route_at from\n{query};",
        topic="?",
        at="?",
    ),
}
_SETTINGS = "set timezone = 'UTC'; set enable_progress_bar = false; set autoinstall_known_extensions = false"
CLOCKS: dict[Clock, dict[str, str]] = {
    "wall": {"began": "valid_from", "ended": "valid_to", "stamp": "changed_at"},
    "ingest": {"began": "seen_from", "ended": "seen_to", "stamp": "ingested_at"},
}
_CONTENT = (
    "broker_name, broker_id, read_queue_nums, write_queue_nums, perm, topic_sys_flag, reported_perm, broker_addrs, "
    "zone_name, enable_acting_master, unconfirmed_broker_ids, ha_server_addr, data_version_timestamp_millis, "
    "data_version_counter, data_version_state_version, heartbeat_timeout_millis, unconfirmed, labels, filter_servers, "
    "static_mapping"
)
"""The content of a row, besides its key: another content begins another version."""
_CLOCK_LEADS = """
select namesrv, max(epoch_us(changed_at) - epoch_us(ingested_at)) / 1e6 as seconds
from main.log where kind = 'changes' group by namesrv order by namesrv
"""


def views_of(table: str, engine: Engine, log: str | None = None) -> str:
    """The views and the macro ``route_at`` in the SQL of an engine.

    ``log`` makes the view of that name. Empty: it is there. None: as the engine reads a Delta table.
    """
    own = _ENGINES[engine]
    query = _text("route_at.sql", {"of_topic": own.topic, "asked_at": own.at}).rstrip()
    head = own.log.format(table=table) if log is None else log
    views = _text("views.sql", {"row": own.row, "temporary": own.temporary, "content": _CONTENT})
    return f"{own.settings}{head}\n\n{views}\n{own.route_at.format(query=query)}\n"


def _text(name: str, words: Mapping[str, str] = {}) -> str:
    text = (_SQL / name).read_text(encoding="utf-8")
    for word, value in words.items():
        text = text.replace(f"{{{word}}}", value)
    return text


class Questions:
    """The views over a log at one moment."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, log: str) -> None:
        """Makes the view ``log`` from the statement ``log``, and the other views over it."""
        connection.execute(_SETTINGS)
        connection.execute(views_of("", "duckdb", log))
        self._connection = connection
        self._is_narrow = False

    def ask(self, query: str, values: Mapping[str, object] | None = None) -> list[Row]:
        """The rows of a query; ``$name`` in it stands for a value."""
        found: list[Row] = self.table(query, values).to_pylist()
        return found

    def table(self, query: str, values: Mapping[str, object] | None = None) -> pa.Table:
        """The same as an Arrow table. Raises LogError if a file of the log cannot be read."""
        try:
            return self._connection.execute(query, values or {}).to_arrow_table()
        except (duckdb.IOException, duckdb.InvalidInputException) as error:
            raise LogError(f"the log cannot be read: {str(error).splitlines()[0]}") from None

    def run(self, name: str, words: Mapping[str, str] = {}) -> None:
        """Makes the views and tables of a file of SQL."""
        self._connection.execute(_text(name, words))

    def name_servers(self) -> list[Row]:
        """Each name server with the interval that the log knows, and how far it has been read."""
        return self.ask(_text("name_servers.sql"))

    def route_at(self, topic: str, at: datetime) -> list[Row]:
        """A topic's route at a time, which has a time zone; a row for each name server and group.

        ``answer`` is ``route``, ``no route`` or ``not known``.
        """
        query = "from route_at($topic, $at) order by namesrv, cluster_name, broker_name"
        return self.ask(query, {"topic": topic, "at": at})

    def who_changed(self, topic: str) -> list[Row]:
        """What happened to a topic, and to the groups that ever had queues of it and their brokers, oldest first."""
        order = "order by valid_from, valid_from_revision, namesrv, key"
        return self.ask(f"from ({_text('who_changed.sql')}) {order}", {"topic": topic})

    def divergence(self, clock: Clock, min_seconds: float = 0.0) -> list[Row]:
        """The disagreements that lasted so long or still last, these first, then the longest ones."""
        self.narrow()
        self.run("divergence.sql", {**CLOCKS[clock], "content": _CONTENT})
        return self.ask(
            "from disagreements where until is null or seconds >= $least "
            "order by until is null desc, seconds desc, since, key",
            {"least": min_seconds},
        )

    def clock_leads(self) -> list[Row]:
        """How far the clock of each name server is ahead of the log's at least. Negative: the shortest delay."""
        return self.ask(_CLOCK_LEADS)

    def narrow(self) -> None:
        """Has ``history`` be of the rows that changed or differ; ``quiet`` has the other ones."""
        if not self._is_narrow:
            self.run("narrow.sql", {"content": _CONTENT})
            self._connection.execute(views_of("", "duckdb", ""))
            self._connection.execute("create temporary table versions as from history")
            self._is_narrow = True


@contextmanager
def questions(place: Place) -> Iterator[Questions]:
    """Opens the log for questions. Raises LogError if it has no batch yet, or a file is missing or was cut."""
    table = place.open()
    paths = place.files(table)
    if not paths:
        raise LogError(f"{place.url} has no batch yet")
    with duckdb.connect() as connection, tempfile.TemporaryDirectory(prefix="route-questions-") as folder:
        names = [_file(place, path, Path(folder)) for path in paths]
        listed = ", ".join(f"'{str(path).replace(chr(39), chr(39) * 2)}'" for path in names)
        log = (
            f"create view log as select * from read_parquet([{listed}], hive_partitioning = true, "
            "hive_types = {'kind': varchar, 'day': date});"
        )
        with failures(f"{place.url} cannot be read"):
            found = Questions(connection, log)
        yield found


def store_history(place: Place) -> int:
    """Stores the view ``history`` as a Delta table, replacing the one there. Returns the number of versions."""
    with questions(place) as asked:
        versions = asked.table("select *, cast(valid_to as date) as ended_on from history order by topic, key")
    with failures(f"{place.url}/{HISTORY} cannot be written"):
        write_deltalake(
            f"{place.url}/{HISTORY}",
            versions,
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=["ended_on"],
            storage_options=place.options or None,
        )
    return len(versions)


def _file(place: Place, path: str, folder: Path) -> Path:
    """A file of the log on this machine. That of a bucket is fetched: DuckDB needs no client for the store then."""
    if place.local is not None:
        return Path(place.table, path)
    found = folder / path
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_bytes(place.read(path))
    return found
