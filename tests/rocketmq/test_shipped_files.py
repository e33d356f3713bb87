"""A real broker registers with name servers that run as the files of deploy/ start them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rocketmq.conftest import REGISTERED_SECONDS
from tests.support.engines import require_native
from tests.support.programs.processes import BIN, Process, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.rocketmq_programs.programs import Broker
from tests.unit.deploy.files import DEPLOY, container, document, image_environment

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
ROUTE = 105


class Start(NamedTuple):
    """How a file of deploy/ starts a name server."""

    arguments: list[str]
    environment: dict[str, str]


def starts(folder: Path) -> Iterator[Start]:
    """Yields the starts of compose, Kubernetes and systemd: on loopback, with files below the folder."""

    def here(text: str, home: str) -> str:
        return re.sub(r"(0\.0\.0\.0|127\.0\.0\.1):\d+", "127.0.0.1:0", text).replace(
            "/var/lib/namesrv", str(folder / home)
        )

    image = image_environment("namesrv")
    for name in ("namesrv-a", "namesrv-b"):
        service = document(DEPLOY / "compose.yaml")["services"][name]
        variables = {**image, **service["environment"]}
        yield Start(service["command"], {key: here(value, name) for key, value in variables.items()})
    variables = {key: here(value, "pod") for key, value in image.items()}
    yield Start(
        [here(one, "pod") for one in container("base", "namesrv", "rocketmq")["args"]],
        {**variables, "NAMESRV_NAME": "namesrv-0"},
    )
    (command,) = re.findall(r"^ExecStart=\S+ (.+)$", (DEPLOY / "systemd/namesrv.service").read_text(), re.MULTILINE)
    file = folder / "namesrv.toml"
    file.write_text(here((DEPLOY / "systemd/namesrv.toml").read_text(), "unit"))
    yield Start(command.replace("/etc/namesrv/namesrv.toml", str(file)).split(), {})


def test_a_broker_registers_with_each_name_server_that_deploy_starts(home: Path, tmp_path: Path) -> None:
    require_native()
    with ExitStack() as stack:
        begun = [
            stack.enter_context(Process([str(BIN / "namesrv"), *start.arguments], start.environment))
            for start in starts(tmp_path)
        ]
        addresses = [str(process.wait_for("namesrv_started")["remoting"]) for process in begun]
        by_name = ";".join(addresses).replace("127.0.0.1", "localhost")  # as pods are in Kubernetes
        broker = stack.enter_context(Broker(home, by_name, "broker-shipped")).wait()
        for address in addresses:
            with RemotingClient(address) as client:
                ask = partial(client.ask, ROUTE, {"topic": "broker-shipped"})
                route = eventually(ask, lambda answer: answer.code == 0, REGISTERED_SECONDS)
            (group,) = route.json["brokerDatas"]
            assert list(group["brokerAddrs"].values()) == [broker.addr]
