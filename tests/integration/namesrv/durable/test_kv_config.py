"""The KV configuration over the wire, and RocketMQ's file of it, through restarts and kills."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb

from groundwork.grpc_errors import RichError
from namesrv import limits
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration, unregister
from tests.support.secured.fleet import outcome

ADMIN = "/namesrv_api.v1.AdminService"
FILE = "kvConfig.json"
NS = "ORDER_TOPIC_CONFIG"


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
    answer = client.admin.ListKvConfigs(pb.ListKvConfigsRequest(namespace=namespace), timeout=TIMEOUT)
    return [(row.namespace, row.key, row.value) for row in answer.kv_configs]


def failure(client: Client, request: Message) -> RichError:
    call = request.DESCRIPTOR.name.removesuffix("Request")
    return client.failure(f"{ADMIN}/{call}", request)


def revision(client: Client) -> int:
    return client.snapshot()[0].header.revision


def test_scenarios_44_to_47_put_get_and_delete(admin: Client) -> None:
    before = revision(admin)
    first = put(admin, "TopicTest", "broker-a:8")
    assert not first.HasField("previous_value")
    assert get(admin, "TopicTest") == "broker-a:8"
    error = failure(admin, pb.GetKvConfigRequest(namespace="namespace", key="key"))
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "KV_NOT_FOUND")
    assert error.metadata == {"namespace": "namespace", "key": "key"}
    gone = delete(admin, "TopicTest")
    assert gone.removed
    assert get(admin, "TopicTest") is None
    again = delete(admin, "TopicTest")
    assert again.HasField("removed")
    assert not again.removed
    assert [answer.header.revision for answer in (first, gone, again)] == [before + 1, before + 2, before + 2]


def test_a_put_tells_the_value_before_and_takes_a_revision_only_if_it_changes_it(admin: Client) -> None:
    before = revision(admin)
    answers = [put(admin, "key", value) for value in ("", "", "größer €")]
    assert [answer.HasField("previous_value") for answer in answers] == [False, True, True]
    assert [answer.header.revision for answer in answers] == [before + 1, before + 1, before + 2]
    assert get(admin, "key") == "größer €"


def test_scenario_54_a_namespace_is_listed_after_a_put_and_gone_with_its_last_key(admin: Client) -> None:
    error = failure(admin, pb.ListKvConfigsRequest(namespace=NS))
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "KV_NOT_FOUND")
    assert listed(admin) == []
    put(admin, "b", "2")
    put(admin, "a", "1")
    put(admin, "ключ", "значение", "другое")
    assert listed(admin, NS) == [(NS, "a", "1"), (NS, "b", "2")]
    assert listed(admin) == [(NS, "", ""), ("другое", "", "")]
    delete(admin, "ключ", "другое")
    assert listed(admin) == [(NS, "", "")]
    assert failure(admin, pb.ListKvConfigsRequest(namespace="другое")).reason == "KV_NOT_FOUND"


@pytest.mark.parametrize("of_namespaces", [True, False])
def test_lists_come_in_pages_that_outlive_changes(admin: Client, of_namespaces: bool) -> None:
    def put_name(name: str) -> None:
        put(admin, "k" if of_namespaces else name, "v", namespace=name if of_namespaces else NS)

    for number in range(5):
        put_name(f"name-{number}")
    request = pb.ListKvConfigsRequest(namespace="" if of_namespaces else NS, page_size=2)
    names: list[str] = []
    while not names or request.page_token:
        page = admin.admin.ListKvConfigs(request, timeout=TIMEOUT)
        names += [row.namespace if of_namespaces else row.key for row in page.kv_configs]
        request.page_token = page.next_page_token
        if len(names) == 2:  # one comes before and one after the place reached
            put_name("aaa")
            put_name("zzz")
    assert names == [*(f"name-{number}" for number in range(5)), "zzz"]
    for bad in (pb.ListKvConfigsRequest(page_token="!"), pb.ListKvConfigsRequest(page_size=-1)):
        assert failure(admin, bad).reason == "INVALID_FIELD"


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


def test_a_counter_that_is_compared_and_set_by_several_writers_loses_nothing(admin: Client) -> None:
    writers, steps, before = 8, 25, revision(admin)

    def count(_writer: int) -> int:
        conflicts = 0
        for _ in range(steps):
            while not _counted(admin):
                conflicts += 1
        return conflicts

    with ThreadPoolExecutor(writers) as pool:
        conflicts = sum(pool.map(count, range(writers)))
    assert get(admin, "counter") == str(writers * steps)
    assert conflicts, "the writers never met"
    assert revision(admin) - before == writers * steps, "each change took one revision, a conflict none"


def _counted(admin: Client) -> bool:
    """Adds one to the counter, unless another writer was faster."""
    value = get(admin, "counter")
    request = pb.PutKvConfigRequest(
        namespace=NS, key="counter", value=str(int(value or 0) + 1), expected=pb.KvExpectation(value=value)
    )
    reason = changed(admin, request)
    assert reason in {"OK", "CONFLICT"}
    return reason == "OK"


LONGEST = "ö" * (limits.MAX_KV_NAME_BYTES // 2) + "x"
BAD_REQUESTS = {
    "put without a namespace": ("namespace", pb.PutKvConfigRequest(key="k", value="v")),
    "put without a key": ("key", pb.PutKvConfigRequest(namespace="n", value="v")),
    "put without a value": ("value", pb.PutKvConfigRequest(namespace="n", key="k")),
    "put with a long namespace": ("namespace", pb.PutKvConfigRequest(namespace=LONGEST + "x", key="k", value="v")),
    "put with a long key": ("key", pb.PutKvConfigRequest(namespace="n", key=LONGEST + "x", value="v")),
    "get without a namespace": ("namespace", pb.GetKvConfigRequest(key="k")),
    "get without a key": ("key", pb.GetKvConfigRequest(namespace="n")),
    "delete without a namespace": ("namespace", pb.DeleteKvConfigRequest(key="k")),
    "delete without a key": ("key", pb.DeleteKvConfigRequest(namespace="n")),
    "list of a long namespace": ("namespace", pb.ListKvConfigsRequest(namespace=LONGEST + "x")),
}


def test_bad_requests_are_answered_with_the_field_and_change_nothing(admin: Client) -> None:
    before = revision(admin)
    for name, (field, request) in BAD_REQUESTS.items():
        error = failure(admin, request)
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"), name
        assert [violation.field for violation in error.violations] == [field], name
    assert revision(admin) == before


def test_names_and_values_are_taken_up_to_their_limits_and_a_longer_value_is_refused(admin: Client) -> None:
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
def test_a_table_at_its_limits_fits_into_pages_and_into_an_answer_to_a_registration(
    tmp_path: Path, entries: dict[str, str]
) -> None:
    (tmp_path / FILE).write_text(json.dumps({"configTable": {NS: entries}}))
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        request = pb.ListKvConfigsRequest(namespace=NS, page_size=limits.MAX_PAGE_SIZE)
        answer = client.admin.ListKvConfigs(request, timeout=TIMEOUT)
        assert len(answer.kv_configs) == min(len(entries), limits.MAX_KV_PAGE_SIZE)
        assert bool(answer.next_page_token) is (len(entries) > limits.MAX_KV_PAGE_SIZE)
        registered = client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        assert registered.order_topic_config == entries


def test_an_answer_to_a_registration_carries_the_order_configuration(admin: Client) -> None:
    assert admin.registration.RegisterBroker(registration(), timeout=TIMEOUT).order_topic_config == {}
    put(admin, "TopicTest", "broker-a:8;broker-b:8")
    put(admin, "TopicTest", "not for brokers", "OTHER")
    answer = admin.registration.RegisterBroker(registration(), timeout=TIMEOUT)
    assert answer.order_topic_config == {"TopicTest": "broker-a:8;broker-b:8"}
    assert not answer.changed
    unregister(admin)
