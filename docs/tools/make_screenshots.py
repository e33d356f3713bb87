#!/usr/bin/env python3
"""Makes docs/pictures/: the console's page in several states, and on a phone, from real name servers.

Starts name servers and consoles of its own on free ports of loopback, and ends them. Needs Chromium and playwright.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from namesrv_api.v1 import route_data_pb2

from tests.support.programs.console_process import ConsoleProcess, chromium
from tests.support.programs.processes import Client, NamesrvProcess, OpenedChannel
from tests.support.registrations import registration

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
BROKERS = tuple(
    (cluster, f"broker-{name}", broker_id)
    for cluster, names in (("east", "ab"), ("west", "c"))
    for name in names
    for broker_id in (0, 1)
)
TOPICS = ("orders", "payments", "refunds", *(f"%RETRY%billing-{number}" for number in range(9)))
WIDE, PHONE = (1180, 900), (390, 844)
TALLEST = 1_100
"""Pixels of a picture at most."""


class Fleet:
    """Name servers with the same brokers, each over a channel of its own."""

    def __init__(self, stack: ExitStack, folder: str) -> None:
        self._folder, self._stack = folder, stack
        self.servers = [self.serve(name) for name in ("ns-a", "ns-b")]
        self._clients = [stack.enter_context(server.connect()) for server in self.servers]
        self._channels: dict[str, list[OpenedChannel]] = {}
        for cluster, broker, broker_id in BROKERS:
            self.register(cluster, broker, broker_id)

    def serve(self, name: str) -> NamesrvProcess:
        """Starts a name server."""
        return self._stack.enter_context(NamesrvProcess("--name", name, "--data-dir", f"{self._folder}/{name}"))

    def register(self, cluster: str, broker: str, broker_id: int, at: tuple[int, ...] = (0, 1)) -> None:
        """Registers a broker."""
        addr = f"10.{1 + ('east', 'west').index(cluster)}.0.{10 * ord(broker[-1]) - 960 + broker_id}:10911"
        identity = route_data_pb2.BrokerIdentity(
            cluster_name=cluster, broker_name=broker, broker_id=broker_id, broker_addr=addr
        )
        for index in at:
            self._channels.setdefault(broker, []).append(_register(self._clients[index], identity))

    def lose(self, broker: str) -> None:
        """Ends the channels of a group, as when its machine dies."""
        for channel in self._channels.pop(broker):
            channel.close()


def _register(client: Client, identity: route_data_pb2.BrokerIdentity) -> OpenedChannel:
    channel = client.open_channel()
    client.registration.RegisterBroker(registration(TOPICS, identity, channel_id=channel.id), timeout=client.TIMEOUT)
    return channel


@contextmanager
def _page(browser: Browser, address: str, size: tuple[int, int], *, dark: bool = False) -> Iterator[Page]:
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light", timezone_id="UTC"
    )
    try:
        page.goto(address)
        page.wait_for_selector("tr:has-text('broker-c')" if "#" not in address else "main h2")
        yield page
    finally:
        page.close()


def _shoot(page: Page, name: str) -> None:
    height = min(TALLEST, int(page.evaluate("document.documentElement.scrollHeight")))
    width = int(page.evaluate("innerWidth"))
    page.screenshot(
        path=PICTURES / f"console-{name}.png", full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height}
    )


def _guard(stack: ExitStack, browser: Browser, folder: str) -> None:
    """Most of a fleet is lost at once."""
    fleet = Fleet(stack, folder)
    namesrv = ";".join(str(server.endpoint) for server in fleet.servers)
    console = stack.enter_context(ConsoleProcess(namesrv, "--permit-actions"))
    with _page(browser, console.page, WIDE) as page:
        for broker in ("broker-b", "broker-c"):
            fleet.lose(broker)
        page.wait_for_selector("text=holds 4 brokers of 2 groups at ns-a, ns-b")
        page.wait_for_selector("tr:has-text('unconfirmed') >> nth=3")
        _shoot(page, "guard")


def main() -> None:
    """Makes the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        browser = stack.enter_context(chromium())
        fleet = Fleet(stack, folder)
        namesrv = ";".join(str(server.endpoint) for server in fleet.servers)
        console = stack.enter_context(ConsoleProcess(namesrv, "--permit-actions"))
        with _page(browser, console.page, WIDE) as page:
            page.wait_for_selector("text=live, 2 of 2 name servers")
            _shoot(page, "healthy")
        with _page(browser, f"{console.page}#/topic?name=orders", WIDE) as page:
            _shoot(page, "route")
        with _page(browser, f"{console.page}#/broker?cluster=east&name=broker-a", WIDE) as page:
            _shoot(page, "broker")
        with _page(browser, console.page, PHONE, dark=True) as page:
            _shoot(page, "phone")
        with _page(browser, console.page, WIDE) as page:
            fleet.lose("broker-b")
            page.wait_for_selector("tr.gone >> nth=1")
            page.wait_for_selector(".journal >> text=lost its channel")
            _shoot(page, "broker-lost")
        fleet.register("west", "broker-d", 0, at=(0,))
        console.act(action="drain", broker="broker-a", cluster="east", why="new disks", force=True, preview=False)
        with _page(browser, f"{console.page}#/servers", WIDE) as page:
            page.wait_for_selector("text=not there")
            page.wait_for_selector("text=new disks")
            _shoot(page, "disagreement")
        with _page(browser, console.page, WIDE) as page:
            for server in fleet.servers:
                server.kill()
            page.wait_for_selector("[role=alert] >> text=No name server is reachable.")
            page.wait_for_selector(".card >> text=unreachable >> nth=1")
            _shoot(page, "unreachable")
        _guard(stack, browser, f"{folder}/held")


if __name__ == "__main__":
    main()
