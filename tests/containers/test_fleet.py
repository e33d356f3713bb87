from __future__ import annotations

import json

import pytest

from deploy.release.engine import CommandError
from tests.containers.fleet import AGENTS, NAMESRVS, ComposeFleet

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("role", [*NAMESRVS, *AGENTS])
def test_a_container_runs_as_a_user_without_privileges_on_a_read_only_root(fleet: ComposeFleet, role: str) -> None:
    assert fleet.execute(role, "id", "-u") == "10001"
    status = fleet.execute(role, "cat", "/proc/1/status")
    values = dict(line.split(":\t", 1) for line in status.splitlines())
    assert values["Uid"].split() == ["10001"] * 4
    assert int(values["CapEff"], 16) == 0
    assert values["NoNewPrivs"] == "1"
    for folder in ("/", "/opt", "/etc"):
        with pytest.raises(CommandError, match=r"Read-only file system|Permission denied"):
            fleet.execute(role, "touch", f"{folder}/written")
    mounts = [line.split() for line in fleet.execute(role, "cat", "/proc/1/mounts").splitlines()]
    assert next(options for _, path, _, options, *_ in mounts if path == "/").split(",")[0] == "ro"


@pytest.mark.parametrize("role", NAMESRVS)
def test_nsctl_in_the_container_finds_its_own_name_server_which_may_write(fleet: ComposeFleet, role: str) -> None:
    (status,) = json.loads(fleet.execute(role, "nsctl", "status", "-o", "json"))
    assert (status["header"]["namesrv_name"], status["endpoint"]) == (role, "127.0.0.1:9878")
    # A fleet that has just begun is warming up: a warning, and exit code 5.
    findings = json.loads(fleet.execute(role, "sh", "-c", "nsctl doctor -o json || test $? = 5"))
    assert {finding["code"] for finding in findings} <= {"WARMING"}
    fleet.execute(role, "touch", "/var/lib/namesrv/written")


def test_stopped_containers_end_with_code_0_and_agents_unregister(fleet: ComposeFleet) -> None:
    for role, left in (("agent-master", (1,)), ("agent-slave", ())):
        fleet.podman("stop", "--time=20", role)
        assert fleet.state(role, "ExitCode") == "0", fleet.logs(role)
        fleet.wait_for_route(*left)
    for role in NAMESRVS:
        fleet.podman("stop", "--time=20", role)
        assert fleet.state(role, "ExitCode") == "0", fleet.logs(role)
