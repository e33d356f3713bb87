"""The console's pages in a browser: every view narrow and light, and wide and dark, and the page as it renews itself.

axe, which checks accessibility, comes from npm as the foreign clients do.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from namesrv_api.v1.admin_service_pb2 import WipeWritePermOfBrokerRequest

from tests.interop.programs import INSTALL_SECONDS, build_node
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import NEVER_SCAN
from tests.support.programs.console_process import ConsoleProcess, chromium
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import identity, registration

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)
GROUPS = 60
VIEWS = (
    "",
    "brokers",
    "brokers?only=unhealthy",
    "broker?cluster=big&name=broker-00",
    "topics",
    "topics?only=unwritable",
    "topic?name=orders",
    "servers",
    "journal",
    "nowhere",
)
WAIT_MILLIS = 1_500 * TIMEOUT
WIDER = "document.documentElement.scrollWidth - innerWidth"
VIOLATIONS = "axe.run(document).then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].html]))"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checker, a script."""
    installed = build_node(tmp_path_factory.mktemp("node")).folder / "node_modules"
    return (installed / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """In front of two name servers. One lacks all brokers; a group is drained, another has no master."""
    data: Path = tmp_path_factory.mktemp("data")
    with (
        NamesrvProcess(*NEVER_SCAN, "--name", "ns-a", "--data-dir", str(data)) as namesrv,
        NamesrvProcess("--name", "ns-b") as other,
        namesrv.connect() as client,
        ConsoleProcess(f"{namesrv.endpoint};{other.endpoint}") as process,
    ):
        channel = client.open_channel()
        for number in range(GROUPS):
            broker = identity(f"10.0.0.{number}:10911", 1 if number == 1 else 0, f"broker-{number:02}", "big")
            topics = ["orders"] if number == 0 else [f"a-rather-long-name-of-a-topic-{number}"]
            client.registration.RegisterBroker(registration(topics, broker, channel_id=channel.id), timeout=TIMEOUT)
        drain = WipeWritePermOfBrokerRequest(force=True, broker_name="broker-00", comment="new disks")
        client.admin.WipeWritePermOfBroker(drain, timeout=TIMEOUT)
        eventually(lambda: process.read("/"), lambda page: "NAME_SERVERS_DISAGREE" in page and "TOPICS_DRAINED" in page)
        yield process
        channel.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 400), ("dark", 1400)])
def test_every_view_can_be_used_by_everybody(
    console: ConsoleProcess, browser: Browser, axe: str, scheme: str, width: int
) -> None:
    # The policy of the page forbids scripts of others, and axe is one.
    viewer = browser.new_context(bypass_csp=True, viewport={"width": width, "height": 900})
    viewer.set_default_timeout(WAIT_MILLIS)
    found = {}
    for view in VIEWS:
        page = viewer.new_page()
        page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        page.goto(f"{console.page}{view}")
        page.evaluate(axe)
        found[view] = (page.evaluate(VIOLATIONS), page.evaluate(WIDER))
        page.close()
    assert found == dict.fromkeys(VIEWS, ([], 0))


def test_the_keyboard_reaches_the_content_first_and_shows_where_it_is(
    console: ConsoleProcess, browser: Browser
) -> None:
    page = browser.new_page()
    page.goto(f"{console.page}brokers")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    page.close()


def test_the_page_renews_itself_and_keeps_typing_place_focus_and_selection(
    console: ConsoleProcess, browser: Browser
) -> None:
    page = browser.new_page(viewport={"width": 1000, "height": 500})
    page.set_default_timeout(WAIT_MILLIS)

    def mark() -> None:
        page.evaluate("document.querySelector('main').firstElementChild.dataset.old = '1'")

    page.goto(f"{console.page}brokers")
    mark()
    page.fill("#contains", "half a na")
    page.evaluate("scrollTo(0, 400)")
    page.wait_for_selector("main:not(:has([data-old]))")
    assert page.input_value("#contains") == "half a na"
    assert page.evaluate("document.activeElement.id") == "contains"
    assert page.evaluate("scrollY") == 400
    mark()
    page.focus("main a >> nth=3")
    page.wait_for_selector("#connection:has-text('Paused')")
    assert page.locator("[data-old]").count() == 1
    page.focus("#contains")
    page.wait_for_selector("main:not(:has([data-old]))")
    mark()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('main td'))")
    page.wait_for_selector("#connection:has-text('Paused')")
    page.evaluate("getSelection().removeAllRanges()")
    page.wait_for_selector("main:not(:has([data-old]))")
    console.signal(signal.SIGSTOP)
    try:
        page.wait_for_selector("#connection:has-text('does not answer')")
    finally:
        console.signal(signal.SIGCONT)
    page.wait_for_selector("body:not(.lost)")
    assert page.locator("main tbody tr").count() == 50, "what was there stayed"
    page.close()


def test_without_javascript_searches_and_pages_work(console: ConsoleProcess, browser: Browser) -> None:
    viewer = browser.new_context(java_script_enabled=False)
    page = viewer.new_page()
    page.set_default_timeout(WAIT_MILLIS)
    page.goto(f"{console.page}brokers")
    page.click("text=Next")
    page.wait_for_selector("tbody tr >> nth=9")
    page.fill("#contains", "BROKER-07")
    page.click("text=Search")
    page.wait_for_selector("text=1 found")
    page.click("main tbody a")
    page.wait_for_selector("h1:has-text('broker-07')")
    viewer.close()
