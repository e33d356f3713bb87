"""SIGUSR1 shows where each task and thread of a process is, and the process goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_agent_api.v1 import client_service_pb2
from broker_agent_api.v1.client_service_pb2_grpc import ClientServiceStub
from namesrv_api.v1 import admin_service_pb2

from groundwork.stack_dumps import DUMP_SIGNAL
from tests.support.programs.agents import TIMEOUT, Agent
from tests.support.programs.processes import NamesrvProcess, Process, eventually


def dumped(process: Process) -> dict[str, Any]:
    """Asks a process for its stacks; returns the last line of what it says."""
    seen = len(process.events("stacks_dumped"))
    process.signal(DUMP_SIGNAL)
    return eventually(lambda: process.events("stacks_dumped"), lambda found: len(found) > seen)[seen]


def stacks(process: Process, event: str) -> str:
    """All stacks of a kind so far."""
    return "\n".join(line["stack"] for line in process.events(event))


def dump_until_a_task_is_in(process: Process, function: str) -> None:
    """Asks for stacks until a task is shown that waits in a function: a call may not have come to it yet."""

    def seen() -> bool:
        dumped(process)
        return f"in {function}" in stacks(process, "task_stack")

    eventually(seen)


@pytest.fixture(params=[False, True], ids=["plain", "debug"])
def debug(request: pytest.FixtureRequest) -> bool:
    """Whether a process is in asyncio's debug mode."""
    return bool(request.param)


def test_a_name_server_shows_its_tasks_and_threads_and_goes_on(engine: str, *, debug: bool) -> None:
    mode = ("--asyncio-debug",) if debug else ()
    with NamesrvProcess(*mode, engine=engine) as namesrv, namesrv.connect() as client:
        # What runs the program, once it waits: of a task that runs, the inner frames are those of a thread.
        dump_until_a_task_is_in(namesrv, "serve_until")
        dumps, shown = namesrv.events("stacks_dumped"), namesrv.events("task_stack")
        assert sum(each["tasks"] for each in shown) == sum(line["tasks"] for line in dumps)
        assert sum(line["tasks_left_out"] for line in dumps) == 0
        assert any("made_at" in each for each in shown) is debug
        threads = sum(len(each["threads"]) for each in namesrv.events("thread_stack"))
        assert threads == sum(line["threads"] for line in dumps) > 0
        channel = client.open_channel()
        dump_until_a_task_is_in(namesrv, "RegistrationServicer.OpenChannel")
        assert client.route() is None, "it answers"
        channel.close()
        assert namesrv.terminate() == 0


def test_a_name_server_that_logs_errors_only_shows_them_all_the_same(tmp_path: Path) -> None:
    with NamesrvProcess("--data-dir", str(tmp_path)) as namesrv, namesrv.connect() as client:
        request = admin_service_pb2.UpdateNamesrvConfigRequest(values={"logLevel": "error"})
        client.admin.UpdateNamesrvConfig(request, timeout=TIMEOUT)
        assert dumped(namesrv)["tasks"] > 0


def test_an_agent_shows_its_threads_and_the_tasks_of_its_listener_for_clients_and_goes_on(*, debug: bool) -> None:
    mode = ("--asyncio-debug",) if debug else ()
    with NamesrvProcess() as namesrv, Agent(str(namesrv.endpoint), *mode) as agent:
        listener = agent.wait_for("agent_started")["listening_on"]
        with grpc.insecure_channel(listener) as connection, agent.connect() as operator:
            request = client_service_pb2.OpenClientChannelRequest(holder="client-1")
            channel: Any = ClientServiceStub(connection).OpenClientChannel(request, timeout=TIMEOUT)
            line = dumped(agent)
            threads = {name for each in agent.events("thread_stack") for name in each["threads"]}
            assert {"MainThread", "broker-agent-periodic", "broker-agent-clients"} <= threads
            assert line["threads"] == sum(len(each["threads"]) for each in agent.events("thread_stack"))
            dump_until_a_task_is_in(agent, "ClientServicer.OpenClientChannel")
            assert any("made_at" in each for each in agent.events("task_stack")) is debug
            assert operator.status().broker_name == "broker-a", "it answers"
            channel.cancel()
        assert agent.terminate() == 0
