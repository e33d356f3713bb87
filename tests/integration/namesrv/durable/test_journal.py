"""The journal over the wire, across restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1 import registration_service_pb2
from typer.testing import CliRunner

from nsctl.cli import app
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import identity, registration


def put_kv(client: Client, value: str) -> None:
    client.admin.PutKvConfig(pb.PutKvConfigRequest(namespace="ns", key="key", value=value), timeout=TIMEOUT)


def change_four_times(client: Client, life: int = 0) -> None:
    """Two brokers register, a value is put, and the first broker leaves."""
    first = identity("127.0.0.1:10911", name="broker-a")
    second = identity("127.0.0.1:20911", name="broker-b")
    client.registration.RegisterBroker(registration(["TopicA", "TopicB"], first), timeout=TIMEOUT)
    client.registration.RegisterBroker(registration(["TopicB"], second), timeout=TIMEOUT)
    put_kv(client, f"{life} a value that is not for everybody")
    gone = registration_service_pb2.UnregisterBrokerRequest(broker=first)
    assert client.registration.UnregisterBroker(gone, timeout=TIMEOUT).removed


def entries(client: Client, **filters: Any) -> list[pb.AuditEntry]:
    """All entries, read in pages of two. Every page but the last must be full."""
    request = pb.ListAuditEntriesRequest(page_size=2, **filters)
    found: list[pb.AuditEntry] = []
    while True:
        page = client.admin.ListAuditEntries(request, timeout=TIMEOUT)
        found += page.entries
        if not page.next_page_token:
            return found
        assert len(page.entries) == 2
        request.page_token = page.next_page_token


def test_the_journal_survives_restarts_in_the_order_of_the_changes(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path))
    expected: list[pb.AuditEntry] = []
    for life in range(2):
        with NamesrvProcess(*flags) as process, process.connect() as client:
            change_four_times(client, life)
            epoch = process.wait_for("namesrv_started")["epoch"]
            found = entries(client)
            assert {entry.epoch for entry in found[:4]} == {epoch}
            assert found[4:] == expected, "entries of former epochs come twice"
            expected = found
            assert process.terminate() == 0
    assert [entry.revision for entry in expected] == [4, 3, 2, 1] * 2
    assert expected == sorted(expected, key=lambda entry: (entry.epoch, entry.revision), reverse=True)
    with NamesrvProcess(*flags) as process, process.connect() as client:
        assert entries(client) == expected, "a start is no change"
        assert entries(client, topic="TopicA") == [entry for entry in expected if entry.revision in (1, 4)]
        assert entries(client, broker_name="broker-b") == [entry for entry in expected if entry.revision == 2]
        latest = expected[0].applied_at_millis
        assert entries(client, from_millis=latest + 1) == []
        assert entries(client, to_millis=latest + 1) == expected
        assert history(process) == [(entry.epoch, entry.revision, entry.summary) for entry in reversed(expected)]


def history(process: NamesrvProcess, *filters: str) -> list[tuple[str, int, str]]:
    """What ``nsctl history --json`` prints."""
    result = CliRunner().invoke(app, ["history", "--json", "--namesrv", str(process.endpoint), *filters])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    return [(row["epoch"], int(row["revision"]), row["summary"]) for row in rows]
