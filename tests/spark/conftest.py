"""Fixtures that the tests of several places share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.patience import TIMEOUT
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration


@pytest.fixture(scope="module")
def namesrv() -> Iterator[NamesrvProcess]:
    """Knows two topics of one broker, which is not seen again."""
    with (
        NamesrvProcess("--name", "ns-a", "--scan-not-active-broker-interval-millis", "0") as server,
        server.connect() as client,
    ):
        client.registration.RegisterBroker(registration(["TopicTest", "Other"], identity()), timeout=TIMEOUT)
        yield server
