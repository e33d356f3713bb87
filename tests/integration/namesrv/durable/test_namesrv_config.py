"""The settings over the wire: read, changed at once and durable. No call reaches a file by them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc
from namesrv_api.v1 import admin_service_pb2 as pb

from groundwork.grpc_errors import RichError
from namesrv.grpc_api.admin import MAX_CONFIG_VALUES
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import registration
from tests.support.stored import stored

UPDATE = "/namesrv_api.v1.AdminService/UpdateNamesrvConfig"


def entries(client: Client) -> dict[str, tuple[str, bool]]:
    """Value and updatable by key, in the order of the answer."""
    answer = client.admin.GetNamesrvConfig(pb.GetNamesrvConfigRequest(), timeout=TIMEOUT)
    return {entry.key: (entry.value, entry.updatable) for entry in answer.entries}


def update(client: Client, **values: str) -> pb.UpdateNamesrvConfigResponse:
    return client.admin.UpdateNamesrvConfig(pb.UpdateNamesrvConfigRequest(values=values), timeout=TIMEOUT)


def failure(client: Client, values: Mapping[str, str], validate_only: bool = False) -> RichError:
    return client.failure(UPDATE, pb.UpdateNamesrvConfigRequest(values=values, validate_only=validate_only))


def revision(client: Client) -> int:
    return client.snapshot()[0].header.revision


def test_every_setting_is_listed_sorted_with_its_value_and_whether_it_can_be_changed(
    admin: Client, data_dir: Path
) -> None:
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
    with (
        NamesrvProcess(*arguments, "--data-dir", str(tmp_path)) as process,
        process.connect() as client,
    ):
        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        (told,) = update(client, scanNotActiveBrokerInterval="50").entries
        assert (told.key, told.value, told.updatable) == ("scanNotActiveBrokerInterval", "50", True)
        eventually(client.addrs, lambda addrs: not addrs)
        assert process.wait_for("broker_removed")["reason"] == "EXPIRED"


def test_more_keys_than_the_limit_are_refused(admin: Client) -> None:
    keys = [f"k{number}" for number in range(MAX_CONFIG_VALUES + 1)]
    assert failure(admin, dict.fromkeys(keys[1:], "")).reason == "INVALID_FIELD"
    error = failure(admin, dict.fromkeys(keys, ""))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert error.metadata["limit"] == str(MAX_CONFIG_VALUES)


COMMAND = "-c $@|sh . echo touch {file};"
LINE = "* * * * * root touch {file}"
ATTACKS = {
    # A command in a path that a shell sees, as brokers were taken over; then the paths of the name server itself.
    "CVE-2023-33246: a command as home": [{"rocketmqHome": COMMAND}],
    "CVE-2023-33246: another file for the KV configuration": [{"kvConfigPath": "{file}"}],
    "CVE-2023-33246: a command as path": [{"kvConfigPath": COMMAND, "returnOrderTopicConfigToBroker": "false"}],
    # Where the settings are written, and then a line of it.
    "CVE-2023-37582: another file, then its content": [
        {"configStorePath": "{file}"},
        {"productEnvNamesrv": f"center\n{LINE}\n"},
        {"orderMessageEnable": f"true\n{LINE}\n"},
        {f"orderMessageEnable\n{LINE}\n": "true"},
    ],
    "CVE-2023-37582: all at once": [{"configStorePath": "{file}", "productEnvNamesrv": f"center\n{LINE}\n"}],
    "the name of the first mending": [{"configStorePathName": "{file}"}],
    "lifting the ban, then the attack": [{"configBlackList": ""}, {"configStorePath": "{file}"}],
    "our own paths": [{"dataDir": "{folder}"}, {"journalMaxBytes": "1000"}],
    "the listener": [{"listen": "0.0.0.0:9876"}, {"listenPort": "9877"}, {"allowInsecure": "true"}],
    "another name server": [{"productEnvNamesrv": "192.0.2.1:9876"}],
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
            refused = []
            for step in steps:
                values = {key: text.format(**names) for key, text in step.items()}
                for validate_only in (True, False):
                    error = failure(client, values, validate_only=validate_only)
                    refused.append((error.code, error.reason))
            assert refused[0] == denied, attack
            assert set(refused) <= {denied, (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")}, attack
            assert (entries(client), revision(client)) == (before, 0), attack
        assert process.wait_for("config_key_denied")["level"] == "warning"
        # What is written afterwards goes where it always went.
        update(client, returnOrderTopicConfigToBroker="false")
        client.admin.PutKvConfig(pb.PutKvConfigRequest(namespace="n", key="k", value=LINE), timeout=TIMEOUT)
        assert process.terminate() == 0
    assert [path.name for path in outside.iterdir()] == [data_dir.name]
    assert stored(data_dir, "settings") == {"returnOrderTopicConfigToBroker": "false"}
