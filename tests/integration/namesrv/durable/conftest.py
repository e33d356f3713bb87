"""A name server that keeps what it is told, and connections to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2 as pb

from tests.support.programs.processes import Client, NamesrvProcess


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def durable(data_dir: Path) -> Iterator[NamesrvProcess]:
    """A name server with a data directory, for the tests of a module that change nothing or KV configuration alone."""
    with NamesrvProcess("--data-dir", str(data_dir)) as process:
        yield process


@pytest.fixture
def admin(durable: NamesrvProcess) -> Iterator[Client]:
    """A connection to it. The KV configuration is empty before each test."""
    with durable.connect() as connected:
        yield connected
        for namespace in connected.admin.ListKvConfigs(pb.ListKvConfigsRequest(), timeout=Client.TIMEOUT).kv_configs:
            listed = pb.ListKvConfigsRequest(namespace=namespace.namespace)
            for row in connected.admin.ListKvConfigs(listed, timeout=Client.TIMEOUT).kv_configs:
                gone = pb.DeleteKvConfigRequest(namespace=row.namespace, key=row.key)
                connected.admin.DeleteKvConfig(gone, timeout=Client.TIMEOUT)
