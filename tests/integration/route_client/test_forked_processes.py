"""Clients in processes that are forked or spawned: an error or a route, and no hang."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys

from route_client import ClientSettings, RouteClient
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration

TOPIC = "TopicTest"
IN_A_FORKED_CHILD = """
import os, signal, sys
from route_client import ForkedProcessError, RouteClient

with RouteClient("127.0.0.1:1") as client:
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    signal.alarm(20)
    for ask in (client.route, client.publish_info, client.forget):
        try:
            ask("TopicTest")
        except ForkedProcessError as error:
            print(error, flush=True)
    client.close()
    os._exit(0)
"""


def test_a_forked_child_that_uses_its_parents_client_is_told_to_create_one_after_the_fork() -> None:
    # gRPC's handlers may keep the child from this code.
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    command = [sys.executable, "-c", IN_A_FORKED_CHILD]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    lines = program.stdout.splitlines()
    assert (len(lines), program.returncode) == (3, 0), program.stderr
    assert all(line.endswith("create the client after the fork") for line in lines)


def _broker_of(endpoint: str) -> str:
    with RouteClient(endpoint, ClientSettings(timeout_seconds=5)) as client:
        known = client.route(TOPIC)
        assert known.route is not None
        return known.route.broker_datas[0].broker_name


def test_a_spawned_process_creates_a_client_of_its_own_while_its_parent_has_one(namesrv: NamesrvProcess) -> None:
    with namesrv.connect() as connected:
        connected.registration.RegisterBroker(registration([TOPIC], identity()), timeout=20)
    endpoint = str(namesrv.endpoint)
    with RouteClient(endpoint), multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_broker_of, [endpoint]).get(60) == "broker-a"
