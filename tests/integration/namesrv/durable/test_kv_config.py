"""The KV configuration over the wire, and RocketMQ's file of it, through restarts and kills."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from namesrv_api.v1 import admin_service_pb2 as pb
from typer.testing import CliRunner

from groundwork.grpc_errors import RichError
from nsctl.cli import app
from tests.support.programs.processes import BIN, Client, NamesrvProcess, ended
from tests.support.secured.fleet import outcome

TIMEOUT = 20.0
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


def changed(client: Client, request: pb.PutKvConfigRequest | pb.DeleteKvConfigRequest) -> str:
    """``OK``, or the reason of the error."""
    call: Any = client.admin.PutKvConfig if isinstance(request, pb.PutKvConfigRequest) else client.admin.DeleteKvConfig
    return outcome(lambda: call(request, timeout=TIMEOUT))


def test_a_counter_that_is_compared_and_set_by_several_writers_loses_nothing(admin: Client) -> None:
    writers, steps = 8, 25

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
    assert admin.snapshot()[0].header.revision == writers * steps, "each change took one revision, a conflict none"


def _counted(admin: Client) -> bool:
    """Adds one to the counter, unless another writer was faster."""
    value = get(admin, "counter")
    request = pb.PutKvConfigRequest(
        namespace=NS, key="counter", value=str(int(value or 0) + 1), expected=pb.KvExpectation(value=value)
    )
    reason = changed(admin, request)
    assert reason in {"OK", "CONFLICT"}
    return reason == "OK"


def test_the_configuration_is_there_again_after_a_kill(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        put(client, "kept", "1")
        put(client, "deleted", "2")
        delete(client, "deleted")
        process.kill()
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        assert listed(client, NS) == [(NS, "kept", "1")]


# RocketMQ's file.


def test_rocketmqs_file_is_imported_by_the_first_start_only(tmp_path: Path) -> None:
    content = json.dumps({"configTable": {NS: {"TopicTest": "broker-a:8"}, "größer": {"ключ": "значение €"}}})
    (tmp_path / FILE).write_text(content)
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        assert process.wait_for("kv_config_imported")["keys"] == 2
        assert (get(client, "TopicTest"), get(client, "ключ", "größer")) == ("broker-a:8", "значение €")
        put(client, "TopicTest", "broker-b:8")
        delete(client, "ключ", "größer")
        process.kill()
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        assert (get(client, "TopicTest"), get(client, "ключ", "größer")) == ("broker-b:8", None)
        assert process.events("kv_config_imported") == []
    assert (tmp_path / FILE).read_text() == content, "the way back has it"


def test_what_nsctl_exports_is_imported_as_it_was(tmp_path: Path) -> None:
    (there := tmp_path / "there").mkdir()
    with NamesrvProcess("--data-dir", str(tmp_path / "here")) as process, process.connect() as client:
        for key, value in (("a", ""), ("ключ", 'größer "€" \\\n\u2028'), ("z", "1")):
            put(client, key, value)
        put(client, "key", "value", "другое")
        before = [listed(client, namespace) for namespace in (NS, "другое")]
        result = CliRunner().invoke(app, ["kv", "export", str(there / FILE), "--namesrv", str(process.endpoint)])
        assert result.exit_code == 0, result.output
    with NamesrvProcess("--data-dir", str(there)) as process, process.connect() as client:
        assert [listed(client, namespace) for namespace in (NS, "другое")] == before


def test_a_broken_file_of_rocketmq_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"configTable": {')
    done = ended([str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path)])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path / FILE} is not JSON in UTF-8; correct it, or move it away" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "lock"}, "no start has taken place"
    (tmp_path / FILE).unlink()
    with NamesrvProcess("--data-dir", str(tmp_path)) as process, process.connect() as client:
        assert listed(client) == []
