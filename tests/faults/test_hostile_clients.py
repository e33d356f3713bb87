"""While hostile clients do what they can, others are answered; then the server holds no more than before.

Times are measured by ``python -m tests.faults.attack.hostile``; a test that asserts them would depend on the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest

from groundwork.channels import ClientFiles
from tests.faults.attack.hostile import Held, register_topics, under_attack
from tests.faults.attack.on_grpc import ATTACKS, ATTACKS_ON_TLS, FRAME_ATTACKS
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.secured.fleet import Place, connected

SECONDS = float(os.environ.get("FAULTS_ATTACK_SECONDS", "1"))
"""How long each attack lasts; 10 in the long profile."""
MOST_MEBIBYTES = 192 + 16 * SECONDS
"""What the server may have grown by: buffers of the connections, and what allocators keep of them."""
LASTING_MEBIBYTES = 64
"""What it may have grown by once an attack is over, however long it was."""
MORE_DESCRIPTORS = 6
"""Connections of the process that come and go by themselves."""


class Attacked(NamedTuple):
    """A server, and how well-behaved clients reach it."""

    process: NamesrvProcess
    files: ClientFiles | None
    """What they check its certificate with; None: no TLS."""

    def check(self, attack: str) -> None:
        """Attacks, and checks what is promised."""
        with connected(self.process.endpoint, self.files) as client:
            register_topics(client)
            before = Held.of(self.process)
            load = under_attack(client, self.process.endpoint.port, attack, SECONDS)
            assert load.errors == []
            assert load.seconds
            assert self.process._popen.poll() is None
            assert Held.of(self.process).mebibytes - before.mebibytes < MOST_MEBIBYTES
            eventually(lambda: Held.of(self.process).mebibytes - before.mebibytes < LASTING_MEBIBYTES)
            eventually(lambda: Held.of(self.process).descriptors <= before.descriptors + MORE_DESCRIPTORS)
            assert client.route() is not None
            assert not self.process.events("internal_defect")
        with connected(self.process.endpoint, self.files) as newcomer:
            assert newcomer.route() is not None


@pytest.fixture(scope="module")
def server() -> Iterator[Attacked]:
    """A server for all attacks, one after the other."""
    with NamesrvProcess() as process:
        yield Attacked(process, None)


@pytest.mark.parametrize("attack", [*ATTACKS, *FRAME_ATTACKS])
def test_others_are_answered_while_a_client_attacks(server: Attacked, attack: str) -> None:
    server.check(attack)


@pytest.fixture(scope="module")
def server_with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A server with TLS for all attacks on it."""
    place = Place.make(tmp_path_factory.mktemp("certificates"))
    with NamesrvProcess(*place.flags("TLS", with_permits=False)) as process:
        yield Attacked(process, place.files("TLS", None))


@pytest.mark.parametrize("attack", ATTACKS_ON_TLS)
def test_others_are_answered_while_a_client_attacks_tls(server_with_tls: Attacked, attack: str) -> None:
    server_with_tls.check(attack)


def test_a_call_that_there_is_not_is_said_to_be_none(server: Attacked) -> None:
    with server.process.connect() as client:
        error = client.failure("/namesrv_api.v1.RouteService/Drop", b"")
    assert error.code == grpc.StatusCode.UNIMPLEMENTED
