"""A fleet with certificates, tokens and permits, and the calls by which tests see who may do what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from namesrv_api.v1 import admin_service_pb2, route_service_pb2

from namesrv_common.client.channels import ClientFiles, ClientSecurity, open_channel
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from tests.support.engines import require_native
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import BIN, Client, NamesrvProcess, ended
from tests.support.registrations import registration
from tests.support.secured.certificates import Authority, Files

CALLERS = ("client", "broker", "admin")
TOKENS = {caller: f"token-of-the-{caller}" for caller in CALLERS}
REGISTRATION = "/namesrv_api.v1.RegistrationService/"
LIVE_SECONDS = 20.0
"""Time for files that changed to be in force: they are looked at every second, and have to look the same twice."""


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def permits(**changes: dict[str, Any]) -> dict[str, Any]:
    """A permits file's content: one principal for each kind of caller."""
    rights: dict[str, dict[str, Any]] = {
        "client": {"look_up": True, "agents": {"clients": ["*/*"]}},
        "broker": {
            "look_up": True,
            "register": ["DefaultCluster/broker-a"],
            "agents": {"replicate": ["DefaultCluster/broker-a"], "filter_servers": ["DefaultCluster/broker-a"]},
        },
        "admin": {
            "look_up": True,
            "administer": True,
            "agents": {"read": ["*/*"], "topics": ["*/broker-a"], "operate": ["DefaultCluster/*"]},
        },
    }
    rows = {
        name: {"certificates": [f"{name}.example"], "token_sha256": [digest(TOKENS[name])], **rights[name]}
        for name in CALLERS
    }
    return {"principals": {name: row | changes.get(name, {}) for name, row in rows.items()}}


@dataclass
class Place:
    """A folder with the certificates, tokens and permits of a fleet."""

    authority: Authority
    server: Files
    callers: dict[str, Files]
    tokens: dict[str, Path]
    permits: Path

    def flags(self, kind: str, *, with_permits: bool = True) -> list[str]:
        """The flags of a name server of a kind."""
        flags = ["--tls-cert", str(self.server.certificate), "--tls-key", str(self.server.key)]
        if kind == "mTLS":
            flags += ["--tls-client-ca", str(self.authority.path)]
        return flags + (["--permits-file", str(self.permits)] if with_permits else [])

    def files(self, kind: str, caller: str | None) -> ClientFiles:
        """What a caller shows to a name server of a kind; nothing of its own if there is no caller."""
        pair = self.callers[caller] if caller and kind == "mTLS" else None
        return ClientFiles(
            self.authority.path,
            pair and pair.certificate,
            pair and pair.key,
            self.tokens[caller] if caller and kind == "token" else None,
        )

    def agent_flags(self, caller: str) -> tuple[str, ...]:
        """The flags of an agent that shows a caller's certificate on both sides."""
        pair = self.callers[caller]
        shown = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
        return ("--tls-ca", str(self.authority.path), *shown)

    def permit(self, **changes: dict[str, Any]) -> None:
        """Writes the permits file, with changes of callers' rows; a server that runs takes it within LIVE_SECONDS."""
        self.permits.write_text(json.dumps(permits(**changes)), encoding="utf-8")

    @classmethod
    def make(cls, tmp_path: Path) -> Place:
        """A folder with everything in it."""
        authority = Authority(tmp_path)
        callers = {name: authority.sign_caller(name) for name in CALLERS}
        tokens = {name: tmp_path / f"{name}.token" for name in CALLERS}
        for name, path in tokens.items():
            path.write_text(TOKENS[name] + "\n")
        place = Place(authority, authority.sign_server(), callers, tokens, tmp_path / "permits.json")
        place.permit()
        return place


@contextmanager
def connected(endpoint: Endpoint, files: ClientFiles) -> Iterator[Client]:
    """A connection of its own."""
    with open_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)], ClientSecurity(files)) as connection:
        yield Client(connection)


def outcome(call: Callable[[], object]) -> str:
    """``OK``, or the reason of the error, or its code where it has none."""
    try:
        call()
    except grpc.RpcError as error:
        rich = RichError.of(error)
        return rich.reason or rich.code.name
    return "OK"


def lookup(client: Client) -> str:
    return outcome(lambda: client.routes.GetNamesrvStatus(route_service_pb2.GetNamesrvStatusRequest(), timeout=TIMEOUT))


def register(client: Client, **changes: Any) -> str:
    return outcome(lambda: client.registration.RegisterBroker(registration(**changes), timeout=TIMEOUT))


@contextmanager
def with_its_broker(place: Place, kind: str, *flags: str) -> Iterator[tuple[NamesrvProcess, Client]]:
    """A name server of a kind, and the connection of its one broker, which has registered."""
    with (
        NamesrvProcess(*flags, *place.flags(kind)) as server,
        connected(server.endpoint, place.files(kind, "broker")) as broker,
    ):
        assert register(broker) == "OK"
        yield server, broker


def administer(client: Client) -> str:
    return outcome(lambda: client.admin.ListAuditEntries(admin_service_pb2.ListAuditEntriesRequest(), timeout=TIMEOUT))


def refused_start(*flags: str) -> str:
    """What a name server that does not start says: one line, and exit code 2."""
    require_native()
    done = ended([str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", *flags])
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("namesrv: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]
