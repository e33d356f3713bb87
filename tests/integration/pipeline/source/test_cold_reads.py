"""Reads of a name server that is warming up: refused, waited for, or asked for as they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from route_pipeline import name_server
from route_pipeline.data_source import NamesrvDataSource
from route_pipeline.name_server import ColdError
from route_pipeline.options import STREAMING, ReadRequest
from route_pipeline.planner import Planner
from route_pipeline.positions import INITIAL
from route_pipeline.spark_readers import NamesrvReader, NamesrvStreamReader
from tests.support.fakes.snapshot_name_server import FakeNamesrv, queue, serving, snapshot, topics_chunk

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
    return NamesrvDataSource(CaseInsensitiveDict({"endpoints": str(fake.endpoint), **options})).reader(StructType())


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
