"""A name server that speaks RocketMQ's protocol, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.programs.rocketmq import RemotingClient
from tests.support.registrations import unregister_all

LOOPBACK = ("--remoting-listen", "127.0.0.1:0")
ALL = ("--remoting-allow", "lookups,registrations,operators,settings")


def address_of(process: NamesrvProcess) -> str:
    """Where a name server speaks RocketMQ's protocol."""
    return str(process.wait_for("namesrv_started")["remoting"])


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamesrvProcess]:
    """One for all tests of a module: brokers leave with their connections, however many at once."""
    folder = tmp_path_factory.mktemp("data")
    with NamesrvProcess(*LOOPBACK, *ALL, "--data-dir", str(folder), "--mass-loss-percent", "100") as process:
        yield process


@pytest.fixture
def own_namesrv(tmp_path: Path) -> Iterator[NamesrvProcess]:
    """One that no other test has used."""
    with NamesrvProcess(*LOOPBACK, *ALL, "--data-dir", str(tmp_path)) as process:
        yield process


@pytest.fixture
def client(namesrv: NamesrvProcess) -> Iterator[RemotingClient]:
    with namesrv.connect() as over_grpc:
        unregister_all(over_grpc)  # after a stall of its own a name server keeps those before for another minute
    with RemotingClient(address_of(namesrv)) as connected:
        eventually(lambda: connected.ask(206).json, lambda told: told == {"topicList": []})
        yield connected
