#!/usr/bin/env python3
"""Makes docs/pictures/console-*.png: the console's pages in three states, from real name servers.

Starts name servers and consoles of its own on free ports of loopback, and ends them. Needs Chromium and playwright.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from namesrv_api.v1.admin_service_pb2 import WipeWritePermOfBrokerRequest

from tests.support.programs.console_process import ConsoleProcess, chromium
from tests.support.programs.processes import NamesrvProcess, OpenedChannel, eventually
from tests.support.registrations import identity, registration

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
GROUPS = (("east", "broker-a"), ("east", "broker-b"), ("west", "broker-c"))
TOPICS = ("orders", "payments", "refunds", *(f"%RETRY%billing-{number}" for number in range(9)))
WIDE, NARROW, TALLEST = 1400, 400, 1200
"""Pixels."""


class Fleet:
    """Two name servers with the same brokers, and a console."""

    def __init__(self, stack: ExitStack, folder: str) -> None:
        servers = [
            stack.enter_context(NamesrvProcess("--name", name, "--data-dir", f"{folder}/{name}"))
            for name in ("ns-a", "ns-b")
        ]
        self._clients = [stack.enter_context(server.connect()) for server in servers]
        self._channels: dict[str, list[OpenedChannel]] = {}
        for cluster, broker in GROUPS:
            for broker_id in (0, 1):
                self.register(cluster, broker, broker_id)
        self.console = stack.enter_context(ConsoleProcess(";".join(str(server.endpoint) for server in servers)))

    def register(self, cluster: str, broker: str, broker_id: int, at: tuple[int, ...] = (0, 1)) -> None:
        """Registers a broker over a channel of its own."""
        registered = identity(f"10.0.{ord(broker[-1]) - 96}.{broker_id + 1}:10911", broker_id, broker, cluster)
        for client in (self._clients[index] for index in at):
            channel = client.open_channel()
            request = registration(TOPICS, registered, channel_id=channel.id)
            client.registration.RegisterBroker(request, timeout=client.TIMEOUT)
            self._channels.setdefault(broker, []).append(channel)

    def lose(self, broker: str) -> None:
        """Ends the channels of a group, as when its machine dies."""
        for channel in self._channels.pop(broker):
            channel.close()

    def drain(self, cluster: str, broker: str, at: tuple[int, ...] = (0, 1)) -> None:
        """Drains a group."""
        wanted = WipeWritePermOfBrokerRequest(cluster_name=cluster, broker_name=broker, comment="new disks", force=True)
        for client in (self._clients[index] for index in at):
            client.admin.WipeWritePermOfBroker(wanted, timeout=client.TIMEOUT)

    def shoot(
        self, browser: Browser, name: str, path: str, text: str, width: int = WIDE, *, dark: bool = False
    ) -> None:
        """Takes a picture of a page once it shows a text."""
        eventually(lambda: self.console.read(f"/{path}"), lambda page: text in page)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
        page.goto(f"{self.console.page}{path}")
        height = min(TALLEST, int(page.evaluate("document.documentElement.scrollHeight")))
        clip = {"x": 0, "y": 0, "width": width, "height": height}
        page.screenshot(path=PICTURES / f"console-{name}.png", full_page=True, clip=clip)  # type: ignore[arg-type]
        page.close()


def main() -> None:
    """Makes the pictures."""
    with chromium() as browser, TemporaryDirectory() as folder:
        with ExitStack() as stack:
            fleet = Fleet(stack, f"{folder}/drained")
            for cluster, broker in GROUPS:
                fleet.drain(cluster, broker)
            fleet.shoot(browser, "drained", "", "TOPICS_DRAINED")
        with ExitStack() as stack:
            fleet = Fleet(stack, f"{folder}/differing")
            fleet.register("west", "broker-d", 0, at=(0,))
            fleet.drain("east", "broker-a", at=(0,))
            fleet.shoot(browser, "differences", "servers", "not there", dark=True)
        with ExitStack() as stack:
            fleet = Fleet(stack, f"{folder}/guarded")
            eventually(lambda: fleet.console.read("/"), lambda page: "6 brokers: all is well" in page)
            for _, broker in GROUPS:
                fleet.lose(broker)
            fleet.shoot(browser, "phone", "", "GUARD_HOLDS_BROKERS", NARROW, dark=True)


if __name__ == "__main__":
    main()
