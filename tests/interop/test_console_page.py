"""The console's page of a big fleet: short enough to be used, and without a finding of axe, which checks accessibility.

axe comes from npm, as the foreign clients do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from namesrv_api.v1.admin_service_pb2 import WipeWritePermOfBrokerRequest

from tests.interop.programs import INSTALL_SECONDS, build_axe
from tests.support.programs.agents import NEVER_SCAN
from tests.support.programs.console_process import ConsoleProcess, chromium
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import identity, registration

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)
GROUPS, TOPICS_OF_GROUP = 250, 20
"""500 brokers and 5,000 topics."""
VIEWS = {
    "overview": "tbody tr",
    "overview?unhealthy=1": "h2",
    "brokers?cluster=big&sort=-heard": "tbody tr",
    "broker?cluster=big&name=broker-000": "tbody td",
    "topics": ".topics li",
    "topic?name=topic-000-00": "svg",
    "servers": "tbody tr",
    "journal": ".journal li",
}
"""Each with something that is there when it is shown."""
TALLEST, MOST_STOPS = 5_000, 160
"""Pixels, and places where the tab key stops. With all brokers in it, the overview had 23,800 and more than 500."""
WAIT_MILLIS = 30_000
STOPS = """[...document.querySelectorAll("a[href], button, input, select, [tabindex='0']")]
    .filter((part) => part.offsetParent && !part.disabled).length"""
VIOLATIONS = "axe.run(document).then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].html]))"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checker, a script."""
    return build_axe(tmp_path_factory.mktemp("axe"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """In front of a name server that has a fleet in three clusters, one of them big, with a group that is drained."""
    data: Path = tmp_path_factory.mktemp("data")
    with (
        # They register once, and axe comes from npm meanwhile.
        NamesrvProcess(*NEVER_SCAN, "--data-dir", str(data)) as namesrv,
        namesrv.connect() as client,
        ConsoleProcess(str(namesrv.endpoint), "--permit-actions") as process,
    ):
        channel = client.open_channel()
        for number in range(GROUPS):
            _register(client, number, channel.id)
        drain = WipeWritePermOfBrokerRequest(force=True, broker_name="broker-000", comment="new disks")
        client.admin.WipeWritePermOfBroker(drain, timeout=20)
        eventually(lambda: process.ask("/api/overview"), lambda told: told["figures"]["brokers"] == 2 * GROUPS)
        eventually(lambda: process.ask("/api/overview")["intents"], bool)
        yield process
        channel.close()


def _register(client: Client, number: int, channel_id: str) -> None:
    topics = [f"topic-{number:03}-{topic:02}" for topic in range(TOPICS_OF_GROUP)]
    cluster = "small" if number % 50 == 1 else "middle" if number % 25 == 2 else "big"
    for broker_id in (0, 1):
        broker = identity(f"10.0.{broker_id}.{number}:10911", broker_id, f"broker-{number:03}", cluster)
        client.registration.RegisterBroker(registration(topics, broker, channel_id=channel_id), timeout=20)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1180), ("dark", 390)])
def test_every_view_of_a_big_fleet_is_short_and_can_be_used_by_everybody(
    console: ConsoleProcess, browser: Browser, axe: str, scheme: str, width: int
) -> None:
    # The policy of the page forbids scripts of others, and axe is one.
    viewer = browser.new_context(
        bypass_csp=True, color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 900}
    )
    viewer.set_default_timeout(WAIT_MILLIS)
    found = {}
    for view, shown in VIEWS.items():
        page = viewer.new_page()
        page.goto(f"{console.page}#/{view}")
        page.wait_for_selector(f"main {shown}")
        page.evaluate(axe)
        height, stops = page.evaluate("document.documentElement.scrollHeight"), page.evaluate(STOPS)
        tall = height > TALLEST * (3 if width < 640 else 1)  # a phone shows rows as cards
        found[view] = (page.evaluate(VIOLATIONS), tall and height, stops > MOST_STOPS and stops)
        page.close()
    assert found == dict.fromkeys(VIEWS, ([], False, False))
