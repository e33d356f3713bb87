"""The data source's objects, called as Spark calls them, without Spark; also of a name server that is warming up."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from pyspark.util import handle_worker_exception

from route_pipeline import name_server, spark_errors
from route_pipeline.change_rows import SnapshotPart
from route_pipeline.data_source import NamesrvDataSource
from route_pipeline.name_server import ColdError, NamesrvError
from route_pipeline.options import STREAMING, ReadRequest
from route_pipeline.planner import Planner
from route_pipeline.positions import INITIAL
from route_pipeline.spark_readers import NamesrvReader, NamesrvStreamReader
from tests.support.fakes.snapshot_name_server import FakeNamesrv, gone, put, queue, serving, snapshot, topics_chunk


def data_source(**options: str) -> NamesrvDataSource:
    return NamesrvDataSource(CaseInsensitiveDict(options))


def test_a_plan_pins_each_name_server_and_reads_it_by_one_task() -> None:
    with serving(snapshot()) as first, serving(snapshot(), namesrv="ns-b") as second:
        endpoints = f"{first.endpoint}; {second.endpoint}"
        parts = data_source(endpoints=endpoints, pinSeconds="60").reader(StructType()).partitions()
        assert (first.pins, second.pins) == ([60_000], [60_000])
    assert [part.value for part in parts] == [SnapshotPart(fake.endpoint, "pin-1") for fake in (first, second)]


def test_a_plan_waits_while_all_snapshots_are_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(snapshot()) as fake:
        reader = data_source(endpoints=str(fake.endpoint)).reader(StructType())
        fake.full = 2
        assert [part.value for part in reader.partitions()] == [SnapshotPart(fake.endpoint, "pin-1")]
        fake.full = 1
        monkeypatch.setattr(name_server, "PIN_WAIT_SECONDS", 0.1)
        with pytest.raises(NamesrvError, match=r"LIMIT_EXCEEDED: pins: 13; start fewer reads at once$"):
            reader.partitions()


def test_two_name_servers_of_one_name_are_refused() -> None:
    with serving(snapshot()) as first, serving(snapshot()) as second:
        reader = data_source(endpoints=f"{first.endpoint},{second.endpoint}").reader(StructType())
        with pytest.raises(NamesrvError, match="both call themselves 'ns-a'"):
            reader.partitions()


def test_the_table_of_changes_is_read_from_the_oldest_one_that_is_left() -> None:
    with serving(snapshot()) as fake:
        fake.compacted_revision = 5
        fake.changes = {5: [put("Old", queue("broker-a"))], 6: [put("New", queue("broker-a"))], 7: [gone("New")]}
        reader = data_source(endpoints=str(fake.endpoint), table="changes").reader(StructType())
        (part,) = reader.partitions()
        rows = pa.Table.from_batches(reader.read(part)).to_pylist()
    assert [(row["revision"], row["op"], row["topic"], row["reason"]) for row in rows] == [
        (6, "put", "New", None),
        (7, "remove", "New", "NOT_IN_REGISTRATION"),
        (7, "changes", None, None),
    ]


TLS = {"endpoints": "a:1", "tls": "true"}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option 'endpoints' is missing"),
        ({"endpoints": "a:1", "tabel": "brokers"}, "option 'tabel' is unknown to namesrv: did you mean 'table'?"),
        ({"endpoints": "a:1", "table": "broker"}, "option 'table' is 'broker': .*'topic_queues', 'brokers',"),
        ({"endpoints": "a:1", "pinSeconds": "3601"}, "option 'pinSeconds' is '3601': .* less than or equal to 3600"),
        ({"endpoints": "a:1", "topics": " , "}, "option 'topics': empty"),
        ({"endpoints": "a:1", "tlsCaFile": "/none"}, "option 'tls' is not 'true', but one of tlsCaFile"),
        ({**TLS, "tlsCaFile": "/none"}, "option 'tlsCaFile': /none: No such file"),
        ({**TLS, "tlsCaFile": __file__}, "option 'tlsCaFile': .* holds no certificates in PEM"),
        ({**TLS, "tlsCertFile": "/none"}, "options 'tlsCertFile' and 'tlsKeyFile' go together"),
        (
            {**TLS, "tlsCertFile": __file__, "tlsKeyFile": __file__},
            "options 'tlsCertFile' and 'tlsKeyFile': .* are no certificate and private key in PEM",
        ),
        ({"endpoints": "a:1", "tls": "maybe"}, "option 'tls' is 'maybe': .* boolean"),
        ({**TLS, "token": "two words"}, "option 'token': not 1 to 4096 visible ASCII characters"),
        ({**TLS, "token": "x", "tokenFile": "/none"}, "options 'token' and 'tokenFile' are both given"),
        ({**TLS, "tokenFile": "/none"}, "option 'tokenFile': /none: No such file"),
        ({"endpoints": "a:1", "token": "x"}, "option 'token' .* others could read it"),
        ({"endpoints": "a"}, "option 'endpoints': address 'a' has no port"),
        ({"endpoints": "a:1", "timeoutSeconds": "0"}, "option 'timeoutSeconds' is '0'"),
        ({"endpoints": "a:1", "timeoutSeconds": "nan"}, "option 'timeoutSeconds' is 'nan'"),
        ({"endpoints": "a:1", "connectTimeoutSeconds": "86401"}, "option 'connectTimeoutSeconds' is '86401'"),
    ],
)
def test_a_wrong_option_is_named_when_spark_asks_for_the_schema(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        data_source(**options).schema()


@pytest.mark.parametrize("is_worker", [True, False])
def test_a_worker_of_spark_reports_the_text_first_and_the_traceback_last(
    is_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_errors, "_is_worker", lambda: is_worker)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    report = io.BytesIO()
    try:
        data_source(endpoints="a:1", tabel="brokers")
    except ValueError as error:
        handle_worker_exception(error, report)
    lines = report.getvalue()[8:].decode().splitlines()
    text = "ValueError: option 'tabel' is unknown to namesrv: did you mean 'table'?"
    assert lines[0] == (text if is_worker else "Traceback (most recent call last):")
    assert lines[-1] == text
    assert lines.count("Traceback (most recent call last):") == 1


def test_a_stream_is_of_the_table_of_changes() -> None:
    with pytest.raises(ValueError, match="a stream is of table 'changes'"):
        data_source(endpoints="a:1").streamReader(StructType())


def test_of_three_name_servers_the_one_that_answers_is_read_where_that_was_asked_for() -> None:
    with serving(snapshot(topics_chunk(TopicTest=[queue("broker-a")]))) as fake:
        endpoints = {"endpoints": f"127.0.0.1:1,{fake.endpoint},127.0.0.1:2", "connectTimeoutSeconds": "1"}
        with pytest.raises(NamesrvError, match=r"^name server 127\.0\.0\.1:1: UNAVAILABLE.*refused"):
            data_source(**endpoints).reader(StructType()).partitions()
        going_on = data_source(**endpoints, onLost="continue").reader(StructType())
        (part,) = going_on.partitions()
        assert sum(batch.num_rows for batch in going_on.read(part)) == 1
    with pytest.raises(NamesrvError, match=r"no name server answers: name server 127.0.0.1:1: .*127.0.0.1:2: "):
        data_source(**endpoints, onLost="continue").reader(StructType()).partitions()


ALL = ReadAllAvailable()
SNAPSHOT = snapshot(topics_chunk(TopicTest=[queue("broker-a")]))


@pytest.fixture
def fake() -> Iterator[FakeNamesrv]:
    with serving(SNAPSHOT) as fake:
        fake.warm = False
        yield fake


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server, "WARM_POLL_SECONDS", 0.05)


def batch(fake: FakeNamesrv, **options: str) -> NamesrvReader:
    return data_source(endpoints=str(fake.endpoint), **options).reader(StructType())


def rows_of(reader: NamesrvReader) -> list[dict[str, Any]]:
    batches = [one for part in reader.partitions() for one in reader.read(part)]
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def request(*fakes: FakeNamesrv, **options: str) -> ReadRequest:
    asked = {"endpoints": ",".join(str(fake.endpoint) for fake in fakes), "table": "changes", **options}
    return ReadRequest.of(asked, STREAMING)


def stream(*fakes: FakeNamesrv, **options: str) -> NamesrvStreamReader:
    return NamesrvStreamReader(request(*fakes, **options))


@pytest.mark.parametrize("table", ["topic_queues", "brokers", "changes"])
def test_a_batch_read_of_a_cold_name_server_is_refused_in_one_line(fake: FakeNamesrv, table: str) -> None:
    with pytest.raises(ColdError) as caught:
        batch(fake, table=table, onLost="continue").partitions()
    assert str(caught.value) == (
        f"name server ns-a at {fake.endpoint} is warming up, so brokers and topics may be missing: "
        "wait a minute, or set the option onCold to 'wait', or to 'read' for what it has so far"
    )
    assert len(fake.released) == len(fake.pins)


def test_a_batch_read_waits_where_it_is_told_to(fake: FakeNamesrv, caplog: pytest.LogCaptureFixture) -> None:
    warms = threading.Timer(0.3, lambda: setattr(fake, "warm", True))
    warms.start()
    assert [row["topic"] for row in rows_of(batch(fake, onCold="wait"))] == ["TopicTest"]
    assert caplog.messages == [f"waiting: name server ns-a at {fake.endpoint} is warming up"]
    fake.warm = False
    with pytest.raises(ColdError, match=r"waited 0\.2 s, the option timeoutSeconds$"):
        batch(fake, onCold="wait", timeoutSeconds="0.2").partitions()


def test_a_cold_name_server_is_read_where_that_was_asked_for(fake: FakeNamesrv) -> None:
    assert [row["topic"] for row in rows_of(batch(fake, onCold="read"))] == ["TopicTest"]
    assert rows_of(batch(fake, onCold="read", table="changes"))


def test_the_position_of_a_restarted_name_server_stands_still_until_it_is_warm(fake: FakeNamesrv) -> None:
    fake.warm = True
    reader = stream(fake)
    before = reader.latestOffset(INITIAL, ALL)
    fake.epoch, fake.revision, fake.warm = "0002", 1, False
    assert reader.latestOffset(before, ALL) == before
    assert reader.partitions(before, before) == []
    fake.warm = True
    assert reader.latestOffset(before, ALL)["namesrvs"][str(fake.endpoint)]["epoch"] == "0002"


def test_available_now_waits_for_all_or_leaves_out_those_that_are_cold(fake: FakeNamesrv) -> None:
    following = Planner(request(fake), waits_for_all=False)
    following.fix_end()
    assert following.end({}) == {}
    threading.Timer(0.3, lambda: setattr(fake, "warm", True)).start()
    reader = stream(fake)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(INITIAL, ALL) != INITIAL
