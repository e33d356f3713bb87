"""A name server with a data directory and failpoints, and one operator who counts up in each of its durable tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from namesrv_api.v1 import admin_service_pb2 as pb

from tests.support import failpoints
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration

TIMEOUT = 20.0
BROKER = "broker-a"
SETTING = "scanNotActiveBrokerInterval"
"""Takes effect only with another setting."""
DURABLE = ("kv_config", "intents", "settings")
"""The tables that an operator's calls change."""


class OperatedServer:
    """Starts the server again and again on one folder. What was acknowledged must be there each time."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.faults = folder / "faults"
        self._arguments = ("--data-dir", str(self.data_dir), *arguments)
        self._number = 0
        self._registrations = 0
        self.acknowledged = dict.fromkeys(DURABLE, 0)
        self.attempted = dict.fromkeys(DURABLE, 0)
        """The last number that was sent: without an answer, it may be there or not."""

    def start(self, faults: str = "") -> NamesrvProcess:
        """Starts the server. AssertionError if it ends before it serves."""
        self.faults.write_text(faults)
        environment = failpoints.environment(self.faults)
        return NamesrvProcess(*self._arguments, environment=environment)

    def hits(self) -> list[str]:
        """The failpoints that were passed since there is the folder."""
        file = self.faults.with_name(f"{self.faults.name}.hits")
        return file.read_text().splitlines() if file.exists() else []

    def register(self, client: Client) -> None:
        """Registers the broker that the intents are about, with a new topic each time, which changes its route."""
        self._registrations += 1
        request = registration(["TopicTest", f"topic-{self._registrations}"], counter=self._registrations)
        client.registration.RegisterBroker(request, timeout=TIMEOUT)

    def change(self, client: Client, table: str) -> None:
        """Writes the next number to a table. RpcError if it is not acknowledged."""
        self._number += 1
        self.attempted[table] = self._number
        calls: dict[str, Callable[[], object]] = {
            "kv_config": lambda: client.admin.PutKvConfig(
                pb.PutKvConfigRequest(namespace="ns", key="key", value=str(self._number)), timeout=TIMEOUT
            ),
            "intents": lambda: client.admin.WipeWritePermOfBroker(
                pb.WipeWritePermOfBrokerRequest(force=True, broker_name=BROKER, comment=str(self._number)),
                timeout=TIMEOUT,
            ),
            "settings": lambda: client.admin.UpdateNamesrvConfig(
                pb.UpdateNamesrvConfigRequest(values={SETTING: str(self._number)}), timeout=TIMEOUT
            ),
        }
        calls[table]()
        self.acknowledged[table] = self._number

    def held(self, client: Client) -> dict[str, int]:
        """The numbers that the server serves."""
        kv_configs = client.admin.ListKvConfigs(pb.ListKvConfigsRequest(), timeout=TIMEOUT).kv_configs
        intents = client.admin.ListIntents(pb.ListIntentsRequest(), timeout=TIMEOUT).intents
        entries = client.admin.GetNamesrvConfig(pb.GetNamesrvConfigRequest(), timeout=TIMEOUT).entries
        get = pb.GetKvConfigRequest(namespace="ns", key="key")
        values = {entry.key: entry.value for entry in entries}
        return {
            "kv_config": int(client.admin.GetKvConfig(get, timeout=TIMEOUT).value) if kv_configs else 0,
            "intents": int(intents[0].comment) if intents else 0,
            "settings": int(values[SETTING]) if self.attempted["settings"] else 0,
        }

    def check(self, client: Client) -> None:
        """What was acknowledged is served, or what was sent after it and never answered."""
        held = self.held(client)
        for table, number in held.items():
            allowed = {self.acknowledged[table], self.attempted[table]}
            if table == "settings" and not self.acknowledged[table]:
                continue  # the default is in force
            assert number in allowed, f"{table} holds {number}, not one of {allowed}"
            self.acknowledged[table] = self.attempted[table] = number
