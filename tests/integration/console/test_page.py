"""The page in a real headless Chromium: what a person sees, hears read out, and does with a keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from namesrv_api.v1 import admin_service_pb2, registration_service_pb2

from tests.support.programs.console_process import ConsoleProcess, chromium
from tests.support.programs.processes import Client, NamesrvProcess, OpenedChannel, eventually
from tests.support.registrations import identity, registration

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "<img src=x onerror=\"document.body.className='owned'\">"
WAIT_MILLIS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@contextmanager
def opened(browser: Browser, address: str, width: int = 1200) -> Iterator[Page]:
    """A page that is looked at; fails if it says anything on its console, such as what its policy forbade."""
    said: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, timezone_id="UTC")
    page.set_default_timeout(WAIT_MILLIS)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(address)
        page.wait_for_selector("main h1")
        yield page
        assert [line for line in said if "ERR_" not in line] == []  # what was not to be reached is said, too
    finally:
        page.close()


def register(client: Client, broker: str = "broker-a", topics: tuple[str, ...] = ("orders",)) -> OpenedChannel:
    channel = client.open_channel()
    request = registration(topics, identity(f"{broker}:10911", 0, broker), channel_id=channel.id)
    client.registration.RegisterBroker(request, timeout=20)
    return channel


def test_a_broker_whose_channel_ends_is_seen_to_go_and_read_out(browser: Browser) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client, ConsoleProcess(str(namesrv.endpoint)) as console:
        kept, lost = register(client), register(client, "broker-b")
        with opened(browser, console.page) as page:
            page.wait_for_selector("tr:has-text('broker-b') >> text=live")
            lost.close()
            page.wait_for_selector("tr.gone:has-text('broker-b') >> text=left")
            assert page.text_content("#news p:last-child") == "broker-b (broker-b:10911) of DefaultCluster left"
            page.wait_for_selector(".journal >> text=lost its channel")
            assert page.locator("tr:has-text('broker-a') >> text=live").count() == 1
        kept.close()


def test_the_channel_of_a_doubted_broker_is_not_shown_as_open(browser: Browser) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client, ConsoleProcess(str(namesrv.endpoint)) as console:
        channel = register(client)
        with opened(browser, f"{console.page}#/broker?cluster=DefaultCluster&name=broker-a") as page:
            page.wait_for_selector("tr:has-text('master') >> text=open")
            announced = registration_service_pb2.HandOverChannelRequest(channel_id=channel.id)
            client.registration.HandOverChannel(announced, timeout=20)
            channel.close()
            page.wait_for_selector("tr:has-text('master'):has-text('doubted until'):has-text('ended')")
            assert page.locator("tr:has-text('master') >> text=open").count() == 0


def test_whatever_is_named_like_markup_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    with (
        NamesrvProcess("--name", HOSTILE, "--data-dir", str(tmp_path)) as namesrv,
        namesrv.connect() as client,
        ConsoleProcess(str(namesrv.endpoint)) as console,
    ):
        channel = register(client)
        drain = admin_service_pb2.WipeWritePermOfBrokerRequest(force=True, broker_name="broker-a", comment=HOSTILE)
        client.admin.WipeWritePermOfBroker(drain, timeout=20)
        with opened(browser, console.page) as page:
            page.wait_for_selector(".comment")
            hostile = [f"topic?name={quote(HOSTILE)}", f"broker?cluster=x&name={quote(HOSTILE)}"]
            for view in (
                "overview",
                "servers",
                "journal",
                "topics",
                "broker?cluster=DefaultCluster&name=broker-a",
                *hostile,
            ):
                page.goto(f"{console.page}#/{view}")
                page.wait_for_selector(f"main:has-text({HOSTILE!r})" if view != "topics" else "text=orders")
                assert page.locator("main img").count() == 0
                assert page.evaluate("document.body.className") == ""
            assert page.text_content("h1") == HOSTILE
        channel.close()


def test_when_the_name_server_dies_the_page_says_so_keeps_what_it_had_and_recovers(
    browser: Browser, tmp_path: Path
) -> None:
    with (
        NamesrvProcess("--data-dir", str(tmp_path)) as namesrv,
        namesrv.connect() as client,
        ConsoleProcess(str(namesrv.endpoint)) as console,
        opened(browser, console.page) as page,
    ):
        channel = register(client)
        page.wait_for_selector("tr:has-text('broker-a')")
        namesrv.kill()
        page.wait_for_selector("[role=alert] >> text=No name server is reachable.")
        assert page.locator("tr:has-text('broker-a') >> text=was live").count() == 1
        with NamesrvProcess("--data-dir", str(tmp_path), port=namesrv.endpoint.port):
            page.wait_for_selector("[role=alert] p", state="detached")
        console.kill()
        page.wait_for_selector("[role=alert] >> text=The console does not answer.")
        channel.close()


def test_it_is_used_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    with (
        NamesrvProcess("--data-dir", str(tmp_path)) as namesrv,
        namesrv.connect() as client,
        ConsoleProcess(str(namesrv.endpoint), "--permit-actions") as console,
    ):
        channel = register(client, topics=("orders", "payments"))
        with opened(browser, console.page) as page:
            page.focus("a:text-is('broker-a')")
            page.keyboard.press("Enter")
            page.wait_for_selector("h1:text-is('broker-a')")
            page.wait_for_selector("a:text-is('payments')")
            page.focus("button[data-act=drain]")
            page.keyboard.press("Enter")
            page.wait_for_selector("dialog >> text=would be done")
            page.keyboard.press("Escape")
            assert page.evaluate("document.activeElement.dataset.act") == "drain"
            page.keyboard.press("Enter")
            page.wait_for_selector("dialog >> text=would be done")
            page.keyboard.press("Tab")
            page.keyboard.type("new disks")
            page.keyboard.press("Tab")  # the table, which can be scrolled
            page.keyboard.press("Tab")  # the tick that takes the last writable group from producers
            page.wait_for_selector("dialog button[type=submit]:disabled")
            page.keyboard.press("Space")
            page.wait_for_selector("dialog button[type=submit]:enabled")
            page.keyboard.press("Enter")
            page.wait_for_selector("dialog >> text='done'")
            page.keyboard.press("Enter")  # Close has the focus
            page.wait_for_selector("button[data-act=restore]")
            page.wait_for_selector(".note >> text=drained")
            page.goto(f"{console.page}#/overview")
            page.wait_for_selector("tr:has-text('broker-a') >> text=drained")
            page.focus("button.sort:text-is('Heard of')")
            page.keyboard.press("Enter")
            page.wait_for_selector("th[aria-sort=ascending] >> text=Heard of")
            assert page.evaluate("document.activeElement.textContent") == "Heard of"
            page.keyboard.press("Space")
            page.wait_for_selector("th[aria-sort=descending] >> text=Heard of")
            page.focus("button.fold")
            page.keyboard.press("Enter")
            page.wait_for_selector("button.fold[aria-expanded=false]")
            assert page.locator("tr:has-text('broker-a')").count() == 0
            page.goto(f"{console.page}#/topics")
            page.wait_for_selector("text=payments")
            eventually(lambda: page.evaluate("document.activeElement.tagName"), lambda tag: bool(tag == "H1"))
            page.keyboard.press("Tab")
            page.keyboard.type("pay")
            page.wait_for_selector("a:text-is('orders')", state="detached")
            assert page.evaluate("document.activeElement.value") == "pay"
            assert page.get_attribute("nav a[aria-current]", "data-view") == "topics"
        channel.close()


def test_it_fits_a_phone_and_its_parts_have_names_for_screen_readers(browser: Browser) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client, ConsoleProcess(str(namesrv.endpoint)) as console:
        channel = register(client)
        with opened(browser, console.page, width=360) as page:
            titles = {"overview": "Overview", "servers": "Name servers", "journal": "Journal", "topics": "Topics"}
            for view, title in {**titles, "topic?name=orders": "orders"}.items():
                page.goto(f"{console.page}#/{view}")
                page.wait_for_selector(f"h1:text-is('{title}')")
                assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert "broker-a: read and write" in str(page.get_attribute("svg[role=img]", "aria-label"))
            nameless = "[...document.querySelectorAll('input, button, nav, [role=region]')].filter((part) =>"
            nameless += " !(part.ariaLabel || part.textContent || part.labels?.length)).length"
            assert page.evaluate(nameless) == 0
        channel.close()


@pytest.mark.slow
def test_what_the_guard_holds_is_told_and_an_admin_says_that_it_is_gone(browser: Browser, tmp_path: Path) -> None:
    with (
        NamesrvProcess("--data-dir", str(tmp_path)) as namesrv,
        namesrv.connect() as client,
        ConsoleProcess(str(namesrv.endpoint), "--permit-actions") as console,
    ):
        with namesrv.connect() as fleet:
            channels = [register(fleet, f"broker-{name}", (f"topic-{name}",)) for name in "abcd"]
        with opened(browser, console.page) as page:
            banner = page.locator(".note:has-text('mass-loss guard')")
            banner.get_by_text("holds 4 brokers of 4 groups").wait_for()
            assert banner.locator("time").count() == 1
            assert banner.get_by_role("link").all_text_contents() == [f"broker-{name}" for name in "abcd"]
            banner.get_by_role("button", name="They are really gone").click()
            page.get_by_role("heading", name="Confirm the loss of all that the guard holds").wait_for()
            page.get_by_text("would be done").wait_for()
            page.get_by_role("button", name="Confirm the loss of all").click()
            banner.wait_for(state="detached")
            assert client.route("topic-a") is None
        for channel in channels:
            channel.close()
