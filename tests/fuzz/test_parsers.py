"""No bytes make a parser of ours fail in any way but with the error that says what is wrong with them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import structlog
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from namesrv_api.v1 import route_data_pb2, route_service_pb2

from broker_agent.namesrv_list import check_namesrv, parse_list, split_address_server
from broker_agent.topics.topics_json import BrokenTopics, decode_mappings, decode_topics, encode_topics
from namesrv.core.errors import Refused
from namesrv.core.journal import JournalQuery
from namesrv.core.snapshot import UnusableSnapshot
from namesrv.grpc_api.handlers import Name, paged
from namesrv.settings import NamesrvSettings, with_texts
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.database import DATABASE_FILE, KV_CONFIG_FILE, Database
from namesrv.storage.journal import Journal
from namesrv.storage.tables import KV_CONFIG, SETTINGS, TABLES, BrokenRows, DurableTable, read_rocketmq_kv_config
from namesrv_common.endpoints import parse_endpoints
from namesrv_common.grpc_errors import DETAILS_KEY, RichError
from namesrv_common.server.permits import PermitsError, read_permits
from namesrv_common.tls.certificates import CertificateError, read_token
from namesrv_common.topic_names import check_topic
from nsctl.contexts import ContextError, client_files, name_servers
from route_client.endpoints import EndpointList
from route_client.errors import EndpointListError
from route_client.route import from_wire
from route_pipeline.options import ReadRequest
from route_pipeline.positions import from_json, to_json
from tests.fuzz.mutations import EXAMPLES, HOSTILE, samples, spoiled
from tests.support.core_fleet import Fleet

pytestmark = pytest.mark.fuzz

MOST_CORPUS_BYTES = 16 * 1024
MOST_ERROR_CHARACTERS = 2_500
_MOST_MUTATIONS = 4
_JOURNAL_BYTES = 1_048_576
_CLOSE_SECONDS = 20.0
_SETTINGS = NamesrvSettings.load(None, {})


class Target(NamedTuple):
    """A parser."""

    read: Callable[[bytes, Path], object]
    """Reads the bytes; the folder is for those that read files. Fails if what it accepts is not what it should be."""
    refuses_with: tuple[type[Exception], ...] = ()
    """What says that the bytes are refused. Nothing for those that never fail."""


def _text(read: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    """A parser of text, which is UTF-8 everywhere, except where an operating system forwards single bytes."""
    return lambda data, _: read(data.decode(errors="surrogateescape"))


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """A parser of a file of this name."""

    def written(data: bytes, folder: Path) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return written


def _database(file: Path) -> None:
    """A database as a start reads it, and its journal."""
    database = Database(file.parent)

    async def read_and_close() -> None:
        try:
            for table in TABLES:
                database.load(table)
            epoch = database.next_epoch(0)
            await Journal(database, epoch, _JOURNAL_BYTES).read(JournalQuery(10))
        finally:
            await database.close(_CLOSE_SECONDS)

    asyncio.run(read_and_close())


def _rows(table: DurableTable[Any], data: bytes, _: Path) -> Any:
    """Rows whose checksums are right, as lines: a key, its value, the next key."""
    lines = data.decode(errors="replace").split("\n")
    content = table.decode(dict(zip(lines[::2], lines[1::2], strict=False)))
    encoded = table.encode(content)
    assert table.encode(table.decode(encoded)) == encoded
    return content


def _settings(data: bytes, folder: Path) -> None:
    with_texts(_SETTINGS, _rows(SETTINGS, data, folder))


def _kv_config_import(file: Path) -> None:
    """RocketMQ's file, as a first start imports it."""
    table = read_rocketmq_kv_config(file)
    assert table is not None
    assert KV_CONFIG.decode(KV_CONFIG.encode(table)).namespaces == {
        namespace: entries for namespace, entries in table.namespaces.items() if entries
    }


def _topics(data: bytes, _: Path) -> None:
    table = decode_topics(data)
    again = decode_topics(encode_topics(table))
    assert (set(again.topics), again.data_version) == (set(table.topics), table.data_version)


def _mappings(data: bytes, _: Path) -> None:
    for topic, mapping in decode_mappings(data).mappings.items():
        check_topic(topic)
        assert all(0 <= queue < mapping.total_queue_nums for queue in mapping.topic_queue_ids)


def _snapshot(data: bytes, _: Path) -> None:
    """Messages, each after its length in four bytes; a file with them would have the right checksum."""
    messages = []
    while len(data) >= 4:
        length = int.from_bytes(data[:4], "big")
        messages.append(data[4 : 4 + length])
        data = data[4 + length :]
    fleet = Fleet()
    try:
        loaded = fleet.state.load_snapshot(messages)
    except UnusableSnapshot:
        assert not fleet.state.tables.topic_queue_table, "what is refused changes nothing"
        raise
    assert len(fleet.state.tables.topic_queue_table) <= loaded.topic_count
    for topic in fleet.state.tables.topic_queue_table:
        fleet.route(topic)
    for message in fleet.state.snapshot().messages():
        route_service_pb2.StreamRouteSnapshotResponse.FromString(message)


def _address_server(text: str) -> None:
    assert split_address_server(text).geturl()


def _list_of_address_server(data: bytes, _: Path) -> None:
    names = parse_list(data)
    assert parse_list("\n".join(map(str, names)).encode()) == names


def _endpoints(text: str) -> None:
    endpoints = parse_endpoints(text)
    assert parse_endpoints(";".join(map(str, endpoints))) == endpoints


def _contexts(file: Path) -> None:
    environment = {"NSCTL_CONTEXTS": str(file)}
    name_servers(None, None, environment)
    client_files({}, None, None, environment)


def _wire_route(data: bytes, _: Path) -> None:
    """A route as a name server that is broken or none of ours may answer it."""
    from_wire(route_data_pb2.TopicRouteData.FromString(data))


def _offset(data: bytes, _: Path) -> None:
    try:
        offset = json.loads(data)
    except (ValueError, RecursionError):
        return  # Spark's business
    positions = from_json(offset)
    assert from_json(to_json(positions)) == positions


def _options(text: str) -> None:
    """Options in lines, ``name=value``."""
    lines = (line.partition("=") for line in text.split("\n"))
    ReadRequest.of({name: value for name, _, value in lines})


def _page_token(text: str) -> None:
    """Text fields of a message are always UTF-8."""
    paged(route_service_pb2.ListTopicsRequest(page_token=text.encode(errors="replace").decode()), Name(""))


def _error_details(data: bytes, _: Path) -> None:
    """What a server that is none of ours puts into grpc-status-details-bin."""
    trailers = grpc.aio.Metadata((DETAILS_KEY, data))
    RichError.of(grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailers, "", ""))


TARGETS: dict[str, Target] = {
    "database": Target(_file(DATABASE_FILE, _database), (DataDirError,)),
    **{f"{table.name}_rows": Target(partial(_rows, table), (BrokenRows,)) for table in TABLES},
    f"{SETTINGS.name}_rows": Target(_settings, (Refused,)),
    "kv_config_import": Target(_file(KV_CONFIG_FILE, _kv_config_import), (DataDirError,)),
    "permits_toml": Target(_file("permits.toml", read_permits), (PermitsError,)),
    "permits_json": Target(_file("permits.json", read_permits), (PermitsError,)),
    "snapshot_messages": Target(_snapshot, (UnusableSnapshot,)),
    "topics_json": Target(_topics, (BrokenTopics,)),
    "topic_queue_mappings": Target(_mappings, (BrokenTopics,)),
    "namesrv_setting": Target(_text(lambda text: check_namesrv([text])), (ValueError,)),
    "namesrv_list": Target(_list_of_address_server, (ValueError,)),
    "address_server_url": Target(_text(_address_server), (ValueError,)),
    "endpoints": Target(_text(_endpoints), (ValueError,)),
    "client_endpoints": Target(_text(EndpointList.parse), (EndpointListError,)),
    "token": Target(_file("token", read_token), (CertificateError,)),
    "nsctl_contexts": Target(_file("contexts.toml", _contexts), (ContextError,)),
    "wire_route": Target(_wire_route, (DecodeError,)),
    "page_token": Target(_text(_page_token), (Refused,)),
    "error_details": Target(_error_details),
    "pipeline_offset": Target(_offset, (ValueError,)),
    "pipeline_options": Target(_text(_options), (ValueError,)),
}
"""Every parser of ours that reads what others wrote."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What targets log is not looked at, and printing it would take most of the time."""
    with structlog.testing.capture_logs():
        yield


def check(target: Target, data: bytes) -> bool:
    """Whether a target takes the bytes. It fails in no other way than with its own error, of one line."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            target.read(data, Path(folder))
        except target.refuses_with as refused:
            error = refused
        else:
            return True
    assert not isinstance(error, UnicodeError), "an error of Python's own"
    assert "\n" not in str(error), "log lines and terminals show one line"
    assert len(str(error)) < MOST_ERROR_CHARACTERS, "an error does not repeat all that was sent"
    return False


@st.composite
def bytes_like(draw: st.DrawFn, corpus: Sequence[bytes]) -> bytes:
    """Mutations of a corpus."""
    data = draw(st.sampled_from(corpus))
    for _ in range(draw(st.integers(0, _MOST_MUTATIONS))):
        data = spoiled(data, corpus, lambda options: draw(st.sampled_from(options)))
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_has_what_a_parser_takes_and_is_small(name: str) -> None:
    taken = [check(TARGETS[name], sample) for sample in samples(name)]
    assert any(taken)
    assert all(len(sample) <= MOST_CORPUS_BYTES for sample in samples(name))


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_refused_clearly_or_taken(name: str) -> None:
    for data in (b"", *HOSTILE):
        check(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.timeout(3_600)
def test_bytes_that_are_almost_right_are_refused_clearly_or_taken(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(data=bytes_like(samples(name)) | st.binary(max_size=200))
    def run(data: bytes) -> None:
        check(target, data)

    run()
