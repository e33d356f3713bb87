"""What operators made of a name server, and the topics of a broker, go into a file and come back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb
from namesrv_api.v1.admin_service_pb2 import PutKvConfigRequest

from nsctl.commands import configuration
from nsctl.session import REFUSED, USAGE, WARNED
from tests.support.programs.nsctl_runs import rows, run
from tests.support.programs.processes import BIN, NamesrvProcess, ended
from tests.support.registrations import register

UNKNOWN = '{"format": 1, "calls": [{"call": "ConfirmBrokerLoss", "request": {}}]}'


def kept_intents(*here: str) -> list[tuple[object, ...]]:
    return [tuple(row.get(key) for key in ("kind", "topic", "ends_at", "comment")) for row in rows("intents", *here)]


def test_a_backup_is_made_so_at_another_name_server_and_at_an_empty_one(tmp_path: Path) -> None:
    file = str(tmp_path / "kept.json")
    with (
        NamesrvProcess("--data-dir", str(tmp_path / "a")) as first,
        NamesrvProcess("--data-dir", str(tmp_path / "b")) as second,
    ):
        here, there = ("--namesrv", str(first.endpoint)), ("--namesrv", str(second.endpoint))
        for namesrv in (first, second):
            with namesrv.connect() as client:
                register(client, "TopicTest", "Other")
        run("drain", "broker-a", "--force", "--for", "2h", "--reason", "new disks", *here)
        run("delete-topic", "Other", "--force", "--hold", "--reason", "legal", *here)
        run("kv", "put", "ORDER_TOPIC_CONFIG", "TopicTest", "broker-a:4", *here)
        run("settings", "set", "scanNotActiveBrokerInterval=30000", *here)
        output = run("backup", "save", file, *here).output
        assert "left out: the journal, topics deleted without --hold, and what brokers report" in output
        assert "listen" in json.loads(Path(file).read_bytes())["left_out"]["settings"]
        assert Path(file).stat().st_mode & 0o777 == 0o600
        assert "File exists" in run("backup", "save", file, *here, exit_code=USAGE).output
        kept = kept_intents(*here)

        run("backup", "restore", file, "--dry-run", *there)
        assert kept_intents(*there) == []
        refused = run("backup", "restore", file, *there, exit_code=REFUSED).output
        assert refused.count("failed: TOPICS_IN_USE") == 2
        assert "repeat with --force" in refused
        run("backup", "restore", file, "--force", *there)
        assert kept_intents(*there) == kept
        assert [row["value"] for row in rows("kv", "get", "ORDER_TOPIC_CONFIG", "TopicTest", *there)] == ["broker-a:4"]
        assert [row["value"] for row in rows("settings", "show", "scanNotActiveBrokerInterval", *there)] == ["30000"]
    with NamesrvProcess("--data-dir", str(tmp_path / "c")) as empty, empty.connect() as client:
        there = ("--namesrv", str(empty.endpoint))
        for dry_run, result in ((("--dry-run",), "would be done"), ((), "done")):
            output = run("backup", "restore", file, *dry_run, *there).output
            assert output.count(f"{result}, awaits registration") == 2
            assert "warning: 2 intents about what nobody has registered yet" in output
        assert [row["awaits_registration"] for row in rows("intents", *there)] == [True, True]
        assert kept_intents(*there) == kept
        register(client, "TopicTest", "Other")
        assert rows("route", "TopicTest", *there)[0]["permission"] == "R--", "in force from the first registration"
        assert client.route("Other") is None


def test_kv_configuration_of_rocketmqs_file_and_of_calls_goes_into_such_a_file(tmp_path: Path) -> None:
    first, file = tmp_path / "a" / "kvConfig.json", tmp_path / "kvConfig.json"
    imported_first = {"Grüße": {f"key-{number:03}": f'"{number}" \\ 名\n' for number in range(1_200)}}  # over a page
    put = {"ORDER_TOPIC_CONFIG": {"TopicTest": "broker-a:4;broker-b:4", "%RETRY%x": ""}}
    first.parent.mkdir()
    first.write_text(json.dumps({"configTable": imported_first}), encoding="utf-8")
    with NamesrvProcess("--data-dir", str(first.parent)) as namesrv, namesrv.connect() as client:
        for key, value in put["ORDER_TOPIC_CONFIG"].items():
            request = PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key=key, value=value)
            client.admin.PutKvConfig(request, timeout=client.TIMEOUT)
        export = ("kv", "export", str(file), "--namesrv", str(namesrv.endpoint))
        full = ended(["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", str(BIN / "nsctl"), *export])
        assert (full.returncode, "File too large" in full.stderr, file.exists()) == (USAGE, True, False), full.stderr
        assert "wrote 1,202 keys" in run(*export).output
        assert "File exists" in run(*export, exit_code=USAGE).output
    table = imported_first | put
    assert json.loads(file.read_bytes()) == {"configTable": table}, "as RocketMQ's KVConfigSerializeWrapper has it"


def test_an_intent_of_an_unknown_kind_is_named_and_the_rest_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.json"
    newer = pb.Intent(broker_name="broker-a", comment="of a newer version")
    newer.MergeFromString(b"\x08\x63")  # kind 99
    intents = [newer, pb.Intent(kind="KIND_TOPIC_HOLD", topic="T")]
    monkeypatch.setattr(configuration, "all_intents", lambda _server: intents)
    with NamesrvProcess("--data-dir", str(tmp_path / "a")) as namesrv:
        output = run("backup", "save", str(file), "--namesrv", str(namesrv.endpoint), exit_code=WARNED).output
    assert "only a newer nsctl knows" in output
    kept = json.loads(file.read_bytes())
    assert kept["left_out"]["intents"][0]["kind"] == "99"
    assert [call["request"] for call in kept["calls"] if call["call"] == "DeleteTopic"] == [
        {"topic": "T", "hold": True}
    ]


def test_what_a_name_server_refuses_is_told_and_the_rest_is_made_so(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    drain = {"call": "WipeWritePermOfBroker", "request": {"broker_name": "nobody"}}
    over = {**drain, "request": {"broker_name": "over", "ends_at_millis": 1}}
    kv = {"call": "PutKvConfig", "request": {"namespace": "n", "key": "k", "value": "v"}}
    file.write_text(json.dumps({"format": 1, "calls": [drain, kv, over]}))
    with NamesrvProcess("--data-dir", str(tmp_path / "a")) as namesrv:
        output = run("backup", "restore", str(file), "--namesrv", str(namesrv.endpoint), exit_code=REFUSED).output
        assert output.count("BROKER_NOT_REGISTERED") == 2, "in the table, and in the error: once each"
        assert "PutKvConfig n k" in output


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "calls": [3]}', UNKNOWN])
def test_a_file_that_is_none_of_ours_is_refused_before_anybody_is_asked(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    assert "other.json" in run("backup", "restore", str(file), "--namesrv", "127.0.0.1:1", exit_code=USAGE).output
