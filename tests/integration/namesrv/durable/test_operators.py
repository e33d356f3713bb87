"""What operators change over the wire: KV configuration and settings. No call reaches a file by them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from namesrv import limits
from namesrv_common.grpc_errors import RichError
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import registration
from tests.support.secured.fleet import outcome

PACKAGE = "/namesrv_api.v1"
FILE = "kvConfig.json"
NS = "ORDER_TOPIC_CONFIG"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def durable(data_dir: Path) -> Iterator[NamesrvProcess]:
    """A name server with a data directory, for tests that change nothing or KV configuration alone."""
    with NamesrvProcess("--data-dir", str(data_dir)) as process:
        yield process


@pytest.fixture
def admin(durable: NamesrvProcess) -> Iterator[Client]:
    """A connection to it. The KV configuration is empty before each test."""
    with durable.connect() as connected:
        yield connected
        for namespace, _, _ in listed(connected):
            for _, key, _ in listed(connected, namespace):
                delete(connected, key, namespace)


def put(client: Client, key: str, value: str, namespace: str = NS) -> pb.PutKvConfigResponse:
    request = pb.PutKvConfigRequest(namespace=namespace, key=key, value=value)
    return client.admin.PutKvConfig(request, timeout=TIMEOUT)


def get(client: Client, key: str, namespace: str = NS) -> str | None:
    try:
        return client.admin.GetKvConfig(pb.GetKvConfigRequest(namespace=namespace, key=key), timeout=TIMEOUT).value
    except grpc.RpcError as error:
        if RichError.of(error).reason == "KV_NOT_FOUND":
            return None
        raise


def delete(client: Client, key: str, namespace: str = NS) -> pb.DeleteKvConfigResponse:
    return client.admin.DeleteKvConfig(pb.DeleteKvConfigRequest(namespace=namespace, key=key), timeout=TIMEOUT)


def listed(client: Client, namespace: str = "") -> list[tuple[str, str, str]]:
    """The rows of all pages, each page of one row."""
    request, rows = pb.ListKvConfigsRequest(namespace=namespace, page_size=1), list[tuple[str, str, str]]()
    for _ in range(5):
        answer = client.admin.ListKvConfigs(request, timeout=TIMEOUT)
        rows += [(row.namespace, row.key, row.value) for row in answer.kv_configs]
        request.page_token = answer.next_page_token
        if not request.page_token:
            break
    return rows


def failure(client: Client, request: Message) -> RichError:
    call = request.DESCRIPTOR.name.removesuffix("Request")
    return client.failure(f"{PACKAGE}.AdminService/{call}", request)


def revision(client: Client) -> int:
    return client.snapshot()[0].header.revision


def test_a_key_is_there_from_its_put_to_its_deletion(admin: Client) -> None:
    """Scenarios 44 to 47. A change takes a revision only if it changes something."""
    before = revision(admin)
    puts = [put(admin, "TopicTest", value) for value in ("", "", "größer €")]
    assert [answer.HasField("previous_value") for answer in puts] == [False, True, True]
    assert get(admin, "TopicTest") == "größer €"
    deletions = [delete(admin, "TopicTest") for _ in range(2)]
    assert get(admin, "TopicTest") is None
    assert all(answer.HasField("removed") for answer in deletions)
    assert [answer.removed for answer in deletions] == [True, False]
    headers = [answer.header for answer in puts] + [answer.header for answer in deletions]
    assert [header.revision - before for header in headers] == [1, 1, 2, 3, 3]


def test_a_namespace_is_listed_after_a_put_and_gone_with_its_last_key(admin: Client) -> None:
    """Scenario 54."""
    assert failure(admin, pb.ListKvConfigsRequest(namespace=NS)).metadata == {"namespace": NS}
    assert listed(admin) == []
    put(admin, "b", "2")
    put(admin, "a", "1")
    put(admin, "ключ", "значение", "другое")
    assert listed(admin, NS) == [(NS, "a", "1"), (NS, "b", "2")]
    assert listed(admin) == [(NS, "", ""), ("другое", "", "")]
    delete(admin, "ключ", "другое")
    assert listed(admin) == [(NS, "", "")]
    assert failure(admin, pb.ListKvConfigsRequest(namespace="другое")).reason == "KV_NOT_FOUND"


STATES = {"absent": None, "empty": "", "value": "value"}
"""What a key may be, and what a change may expect it to be."""


def changed(client: Client, request: pb.PutKvConfigRequest | pb.DeleteKvConfigRequest) -> str:
    """``OK``, or the reason of the error."""
    call: Any = client.admin.PutKvConfig if isinstance(request, pb.PutKvConfigRequest) else client.admin.DeleteKvConfig
    return outcome(lambda: call(request, timeout=TIMEOUT))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("expected", STATES)
def test_a_change_is_made_only_of_a_key_that_is_as_expected(admin: Client, state: str, expected: str) -> None:
    before, expectation = STATES[state], pb.KvExpectation(value=STATES[expected])
    to_put = pb.PutKvConfigRequest(namespace=NS, key="key", value="new", expected=expectation, validate_only=True)
    to_delete = pb.DeleteKvConfigRequest(namespace=NS, key="key", expected=expectation, validate_only=True)
    for request, after in ((to_put, "new"), (to_delete, None)):
        if before is None:
            delete(admin, "key")
        else:
            put(admin, "key", before)
        reason = "OK" if state == expected else "CONFLICT"
        assert changed(admin, request) == reason
        assert get(admin, "key") == before, "it was a validation"
        request.validate_only = False
        assert changed(admin, request) == reason
        assert get(admin, "key") == (after if state == expected else before)


def test_of_changes_that_expect_the_same_at_once_one_is_made(admin: Client) -> None:
    request, before = (
        pb.PutKvConfigRequest(namespace=NS, key="k", value="v", expected=pb.KvExpectation()),
        revision(admin),
    )
    with ThreadPoolExecutor(8) as pool:
        outcomes = sorted(pool.map(lambda _: changed(admin, request), range(8)))
    assert outcomes == ["CONFLICT"] * 7 + ["OK"]
    assert revision(admin) == before + 1, "a conflict takes none"


LONGEST = "ö" * (limits.MAX_KV_NAME_BYTES // 2) + "x"
REFUSED: list[tuple[str, Message]] = [
    ("key", pb.PutKvConfigRequest(namespace="n", value="v")),
    ("value", pb.PutKvConfigRequest(namespace="n", key="k")),
    ("namespace", pb.PutKvConfigRequest(namespace=LONGEST + "x", key="k", value="v")),
    ("key", pb.PutKvConfigRequest(namespace="n", key=LONGEST + "x", value="v")),
    ("key", pb.GetKvConfigRequest(namespace="n")),
    ("key", pb.DeleteKvConfigRequest(namespace="n")),
    ("namespace", pb.ListKvConfigsRequest(namespace=LONGEST + "x")),
    ("page_token", pb.ListKvConfigsRequest(page_token="!")),
    ("values", pb.UpdateNamesrvConfigRequest()),
    ("values", pb.UpdateNamesrvConfigRequest(validate_only=True)),
    ("broker_name", pb.WipeWritePermOfBrokerRequest()),
    ("broker_name", pb.AddWritePermOfBrokerRequest()),
    ("topic", pb.DeleteTopicRequest()),
]
"""Calls that are about something, and what the request does not name as it should."""


def test_a_call_that_is_about_something_is_refused_if_it_does_not_say_what(admin: Client) -> None:
    """Scenario 55, decided otherwise: upstream answers success to an empty header, and does nothing."""
    before = revision(admin)
    for field, request in REFUSED:
        error = failure(admin, request)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), request
        assert [violation.field for violation in error.violations] == [error.metadata["field"]] == [field]
    assert revision(admin) == before


def test_names_and_values_are_taken_up_to_their_limits(admin: Client) -> None:
    longest_value = "ä" * (limits.MAX_KV_VALUE_BYTES // 2)
    put(admin, LONGEST, longest_value, LONGEST)
    assert get(admin, LONGEST, LONGEST) == longest_value
    assert get(admin, LONGEST, LONGEST[1:]) is None
    error = failure(admin, pb.PutKvConfigRequest(namespace=NS, key="k", value=longest_value + "x"))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert error.metadata["limit"] == str(limits.MAX_KV_VALUE_BYTES)


FULL_TABLES = {
    "most keys": {f"{number:05}": "v" * 100 for number in range(limits.MAX_KV_KEYS)},
    "longest values": {str(number): "v" * limits.MAX_KV_VALUE_BYTES for number in range(31)},
}


@pytest.mark.parametrize("entries", FULL_TABLES.values(), ids=FULL_TABLES)
def test_a_table_at_its_limits_fits_into_pages_and_an_answer(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / FILE).write_text(json.dumps({"configTable": {NS: entries, "not for brokers": {"k": "v"}}}))
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        request = pb.ListKvConfigsRequest(namespace=NS, page_size=limits.MAX_PAGE_SIZE)
        answer = client.admin.ListKvConfigs(request, timeout=TIMEOUT)
        assert len(answer.kv_configs) == min(len(entries), limits.MAX_KV_PAGE_SIZE)
        assert bool(answer.next_page_token) is (len(entries) > limits.MAX_KV_PAGE_SIZE)
        registered = client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        assert registered.order_topic_config == entries


def entries(client: Client) -> dict[str, tuple[str, bool]]:
    """Value and updatable by key, in the order of the answer."""
    answer = client.admin.GetNamesrvConfig(pb.GetNamesrvConfigRequest(), timeout=TIMEOUT)
    return {entry.key: (entry.value, entry.updatable) for entry in answer.entries}


def update(client: Client, **values: str) -> pb.UpdateNamesrvConfigResponse:
    return client.admin.UpdateNamesrvConfig(pb.UpdateNamesrvConfigRequest(values=values), timeout=TIMEOUT)


def test_settings_are_listed_with_whether_they_can_be_changed(admin: Client, data_dir: Path) -> None:
    listed = entries(admin)
    assert list(listed) == sorted(listed)
    assert listed["dataDir"] == (str(data_dir), False)
    assert listed["engine"] == ("native", False)
    assert listed["allowInsecure"] == ("false", False)
    assert listed["returnOrderTopicConfigToBroker"] == ("true", True)
    assert listed["scanNotActiveBrokerInterval"] == ("10000", True)
    assert listed["brokerChannelExpiredTime"] == ("120000", False)
    assert listed["supportActingMaster"] == ("false", False)


def test_the_scan_for_silent_brokers_follows_its_interval_at_once(tmp_path: Path) -> None:
    arguments = ("--scan-not-active-broker-interval-millis", "0", "--broker-channel-expired-time-millis", "1000")
    with NamesrvProcess(*arguments, "--data-dir", str(tmp_path)) as process, process.connect() as client:
        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        (told,) = update(client, scanNotActiveBrokerInterval="50").entries
        assert (told.key, told.value, told.updatable) == ("scanNotActiveBrokerInterval", "50", True)
        eventually(client.addrs, lambda addrs: not addrs)
        assert process.wait_for("broker_removed")["reason"] == "EXPIRED"


LINE = "* * * * * root touch {file}"
ATTACKS = {
    "CVE-2023-33246: another file for the KV configuration": [{"kvConfigPath": "{file}"}],
    # Where the settings are written, and then a line of it.
    "CVE-2023-37582: another file, then its content": [
        {"configStorePath": "{file}"},
        {"productEnvNamesrv": f"center\n{LINE}\n"},
        {"orderMessageEnable": f"true\n{LINE}\n"},
        {f"orderMessageEnable\n{LINE}\n": "true"},
    ],
    "lifting the ban, then the attack": [{"configBlackList": ""}, {"configStorePath": "{file}"}],
    "our own paths": [{"dataDir": "{folder}"}, {"journalMaxBytes": "1000"}],
}


def test_attacks_on_paths_are_refused_and_leave_no_trace(tmp_path: Path) -> None:
    """Scenario 49."""
    outside, data_dir = tmp_path / "outside", tmp_path / "outside" / "data"
    outside.mkdir()
    names = {"file": outside / "attacked", "folder": outside / "elsewhere"}
    denied = (grpc.StatusCode.PERMISSION_DENIED, "CONFIG_KEY_DENIED")
    with NamesrvProcess("--data-dir", str(data_dir)) as process, process.connect() as client:
        before = entries(client)
        for attack, steps in ATTACKS.items():
            errors = []
            for step in steps:
                values = {key: text.format(**names) for key, text in step.items()}
                for validate_only in (True, False):
                    update_of = pb.UpdateNamesrvConfigRequest(values=values, validate_only=validate_only)
                    error = failure(client, update_of)
                    errors.append((error.code, error.reason))
            assert errors[0] == denied, attack
            assert set(errors) <= {denied, (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")}, attack
            assert (entries(client), revision(client)) == (before, 0), attack
        assert process.wait_for("config_key_denied")["level"] == "warning"
        # What is written afterwards goes where it always went.
        update(client, returnOrderTopicConfigToBroker="false")
        put(client, "k", LINE)
        assert process.terminate() == 0
    assert [path.name for path in outside.iterdir()] == [data_dir.name]
    with closing(sqlite3.connect(data_dir / "namesrv.db")) as database:
        rows = database.execute("SELECT key, value FROM durable WHERE name = 'settings'").fetchall()
    assert rows == [("returnOrderTopicConfigToBroker", "false")]
