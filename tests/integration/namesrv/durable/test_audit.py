"""The journal over the wire and as a file, on both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2

from namesrv.app.durable_routes import AUDIT_FILES
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

TIMEOUT = 20.0
CALL = "/namesrv_api.v1.AdminService/ListAuditEntries"
FILE = "audit.jsonl"
FILE_BYTES = 2_000


@pytest.fixture
def audited(engine: str, tmp_path: Path) -> Iterator[NamesrvProcess]:
    """A name server that keeps three small audit files."""
    settings = ("--audit-file-max-bytes", str(FILE_BYTES))
    with NamesrvProcess("--data-dir", str(tmp_path), *settings, engine=engine) as process:
        yield process


@pytest.fixture
def admin(audited: NamesrvProcess) -> Iterator[Client]:
    """A connection to it."""
    with audited.connect() as connected:
        yield connected


def put_kv(client: Client, value: str) -> None:
    client.admin.PutKvConfig(pb.PutKvConfigRequest(namespace="ns", key="key", value=value), timeout=TIMEOUT)


def change_four_times(client: Client) -> None:
    """Two brokers register, a value is put, and the first broker leaves."""
    first = identity("127.0.0.1:10911", name="broker-a")
    second = identity("127.0.0.1:20911", name="broker-b")
    client.registration.RegisterBroker(registration(["TopicA", "TopicB"], first), timeout=TIMEOUT)
    client.registration.RegisterBroker(registration(["TopicB"], second), timeout=TIMEOUT)
    put_kv(client, "a value that is not for everybody")
    gone = registration_service_pb2.UnregisterBrokerRequest(broker=first)
    assert client.registration.UnregisterBroker(gone, timeout=TIMEOUT).removed


def entries(client: Client, **filters: Any) -> list[pb.AuditEntry]:
    """All entries, in pages of two, each but the last of which must be full."""
    request = pb.ListAuditEntriesRequest(page_size=2, **filters)
    found: list[pb.AuditEntry] = []
    while True:
        page = client.admin.ListAuditEntries(request, timeout=TIMEOUT)
        found += page.entries
        if not page.next_page_token:
            return found
        assert len(page.entries) == 2
        request.page_token = page.next_page_token


def lines(folder: Path) -> list[dict[str, Any]]:
    """All lines of the files, oldest first."""
    files = [folder / FILE, *(folder / f"{FILE}.{number}" for number in range(1, AUDIT_FILES + 1))]
    return [json.loads(line) for file in reversed(files) if file.exists() for line in file.read_text().splitlines()]


def test_every_change_leaves_an_entry_that_says_who_did_what(admin: Client) -> None:
    change_four_times(admin)
    found = entries(admin)
    assert [entry.revision for entry in found] == [4, 3, 2, 1]
    unregistered, kv, _, registered = found
    assert registered.cause == "RegisterBroker"
    assert registered.caller
    assert registered.summary.startswith("broker-a (127.0.0.1:10911, id 0) of DefaultCluster registered: new group; ")
    assert "2 topics put (TopicA, TopicB)" in registered.summary
    assert kv.summary.startswith("KV configuration: 'ns' 'key' put: 'a value")
    assert "not for everybody" not in kv.summary
    assert unregistered.cause == "UnregisterBroker"
    assert unregistered.summary.startswith(
        "broker-a (127.0.0.1:10911, id 0) of DefaultCluster unregistered: group gone"
    )
    assert "2 topics lost their queues on it (TopicA, TopicB)" in unregistered.summary
    assert found == sorted(found, key=lambda entry: -entry.applied_at_millis)


def test_entries_are_filtered_by_topic_broker_and_time(admin: Client) -> None:
    change_four_times(admin)
    assert [entry.revision for entry in entries(admin, topic="TopicA")] == [4, 1]
    assert [entry.revision for entry in entries(admin, topic="TopicB")] == [4, 2, 1]
    assert [entry.revision for entry in entries(admin, topic="TopicC")] == []
    assert [entry.revision for entry in entries(admin, broker_name="broker-a")] == [4, 1]
    assert [entry.revision for entry in entries(admin, topic="TopicB", broker_name="broker-b")] == [2]
    last = entries(admin)[0].applied_at_millis
    assert [entry.revision for entry in entries(admin, to_millis=last + 1)] == [4, 3, 2, 1]
    assert entries(admin, from_millis=last + 1) == []
    assert 4 in [entry.revision for entry in entries(admin, from_millis=last)]
    assert 4 not in [entry.revision for entry in entries(admin, to_millis=last)]


def test_a_heartbeat_and_a_registration_that_change_nothing_leave_no_entry(admin: Client) -> None:
    for _ in range(2):
        admin.registration.RegisterBroker(registration(["TopicA"]), timeout=TIMEOUT)
    assert [entry.revision for entry in entries(admin)] == [1]


def test_bad_filters_are_refused_by_name(admin: Client) -> None:
    bad = {
        "topic": pb.ListAuditEntriesRequest(topic="no topic"),
        "broker_name": pb.ListAuditEntriesRequest(broker_name=""),
        "from_millis": pb.ListAuditEntriesRequest(from_millis=-1),
        "to_millis": pb.ListAuditEntriesRequest(from_millis=2, to_millis=1),
        "page_size": pb.ListAuditEntriesRequest(page_size=-1),
        "page_token": pb.ListAuditEntriesRequest(page_token="!"),
    }
    for field, request in bad.items():
        error = admin.failure(CALL, request)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
        assert error.metadata["field"] == field


def test_the_file_has_a_line_for_every_change_and_all_of_them_after_a_shutdown(
    audited: NamesrvProcess, admin: Client, tmp_path: Path
) -> None:
    change_four_times(admin)
    found = entries(admin)
    eventually(lambda: lines(tmp_path))  # it does not wait for the shutdown
    assert audited.terminate() == 0
    epoch = audited.wait_for("namesrv_started")["epoch"]
    assert [(line["epoch"], line["revision"], line["caller"], line["cause"]) for line in lines(tmp_path)] == [
        (epoch, entry.revision, entry.caller, entry.cause) for entry in reversed(found)
    ]
    assert [line["summary"] for line in lines(tmp_path)] == [entry.summary for entry in reversed(found)]


def test_the_file_rotates_and_the_newest_are_kept(audited: NamesrvProcess, admin: Client, tmp_path: Path) -> None:
    count = 60  # some 200 bytes each, so twice what is kept
    for number in range(count):
        put_kv(admin, f"value {number}")
    assert audited.terminate() == 0
    files = sorted(tmp_path.glob(f"{FILE}*"))
    assert [file.name for file in files] == [FILE, f"{FILE}.1", f"{FILE}.2"]
    assert all(0 < file.stat().st_size <= FILE_BYTES for file in files)
    kept = [line["revision"] for line in lines(tmp_path)]
    assert kept == list(range(count + 1 - len(kept), count + 1))
    assert len(kept) < count


def test_a_full_disk_costs_lines_and_nothing_else(audited: NamesrvProcess, admin: Client, tmp_path: Path) -> None:
    (tmp_path / FILE).symlink_to("/dev/full")
    for number in range(3):
        put_kv(admin, f"value {number}")
    problem = audited.wait_for("audit_file_not_written")
    assert problem["problem"] == "No space left on device"
    assert len(entries(admin)) == 3
    assert audited.terminate() == 0


def test_a_name_server_without_a_file_has_the_journal_all_the_same(client: Client) -> None:
    client.registration.RegisterBroker(registration(["TopicA"]), timeout=TIMEOUT)
    assert [entry.revision for entry in entries(client)] == [1]
