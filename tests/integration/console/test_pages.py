"""The console over HTTP, in front of real name servers: its pages, who may reach it, and what hostile peers send."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import uvicorn
from namesrv_api.v1.admin_service_pb2 import WipeWritePermOfBrokerRequest
from typer.testing import CliRunner
from uvicorn.server import ServerState

from nsctl import cli
from nsctl.console import app
from tests.support.fleet_states import two_name_servers
from tests.support.hostile.server import Answer, filled, hostile_server, refused
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import joined
from tests.support.programs.console_process import ConsoleProcess
from tests.support.programs.processes import NamesrvProcess, OpenedChannel, eventually
from tests.support.registrations import identity, registration
from tests.support.secured.fleet import Place, connected

NOBODY = "127.0.0.1:1"
VIEWS = ("/", "/brokers", "/topics", "/servers", "/journal")


class ShownFleet:
    """Two name servers, and a console in front of them."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.servers = stack.enter_context(two_name_servers(folder))
        self.clients = [stack.enter_context(server.connect()) for server in self.servers]
        self.console = stack.enter_context(ConsoleProcess(joined(*self.servers)))
        self.channels: list[OpenedChannel] = []

    def register(self, at: int, broker: str = "broker-a", topics: tuple[str, ...] = ("orders",)) -> OpenedChannel:
        channel = self.clients[at].open_channel()
        request = registration(topics, identity(f"{broker}:10911", 0, broker), channel_id=channel.id)
        self.clients[at].registration.RegisterBroker(request, timeout=TIMEOUT)
        self.channels.append(channel)  # a stream that nobody holds ends
        return channel

    def shows(self, path: str, *texts: str) -> str:
        return eventually(lambda: self.console.read(path), lambda page: all(text in page for text in texts))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ShownFleet]:
    with ExitStack() as stack:
        yield ShownFleet(stack, tmp_path)


def test_brokers_come_and_a_lost_one_goes_with_its_reason(fleet: ShownFleet) -> None:
    lost = []
    for at in (0, 1):
        fleet.register(at)
        lost.append(fleet.register(at, "broker-b"))
    fleet.shows("/", "broker-a</a>", "broker-b</a>", "2 name servers, 2 brokers: all is well")
    for channel in lost:
        channel.close()
    fleet.shows("/", "lost its channel", "BROKER_LOST", "at ns-a, ns-b")
    eventually(lambda: fleet.console.read("/"), lambda page: "name=broker-b" not in page)
    page = fleet.console.read("/journal?broker=broker-b")
    assert "lost its channel" in page
    assert "Older" not in page
    assert fleet.console.request("/broker?cluster=DefaultCluster&name=broker-b")[0] == 200, "the journal knows it"


def test_a_drained_fleet_is_red_and_shows_how_to_restore_it(fleet: ShownFleet) -> None:
    for at in (0, 1):
        fleet.register(at)
        wanted = WipeWritePermOfBrokerRequest(broker_name="broker-a", comment="new disks", force=True)
        fleet.clients[at].admin.WipeWritePermOfBroker(wanted, timeout=TIMEOUT)
    restore = "nsctl undrain --cluster=DefaultCluster broker-a"
    page = fleet.shows("/", "TOPICS_DRAINED", restore, "with no end", "1 problem<")
    assert re.search(r'class="note bad summary">[^<]*1 problem', page)
    topic = fleet.console.read("/topic?name=orders")
    assert restore in topic
    assert "nsctl explain --zone=ZONE -- orders" in topic
    assert "no writable queue" in fleet.console.read("/topics?only=unwritable")
    page = fleet.shows("/broker?cluster=DefaultCluster&name=broker-a", "new disks")
    assert "--dry-run" not in page, "it is drained already"


def test_name_servers_that_hold_something_else_are_told_apart(fleet: ShownFleet) -> None:
    for at in (0, 1):
        fleet.register(at, topics=("orders", "payments")[: at + 1])
    fleet.register(1, "broker-b")
    fleet.shows("/", "NAME_SERVERS_DISAGREE", "nsctl diff", "not at ns-a")
    fleet.shows("/servers", "broker-b", "not there")
    page = fleet.console.read("/topics?only=differing")
    assert "payments" in page
    assert ">orders<" not in page


def test_one_that_hangs_is_marked_and_delays_no_page(fleet: ShownFleet) -> None:
    fleet.register(1)
    fleet.shows("/brokers", "broker-a", "not at ns-a")
    fleet.servers[0].signal(signal.SIGSTOP)
    fleet.shows("/", "UNREACHABLE", "did not answer within 3 s")
    page = fleet.shows("/journal", "ns-a is unreachable")
    assert "broker-a" in page
    assert "not at ns-a" not in fleet.console.read("/brokers")
    fleet.servers[1].kill()
    fleet.shows("/", "No name server answers", "broker-a</a>")
    fleet.servers[0].signal(signal.SIGCONT)
    fleet.shows("/", "UNREACHABLE", "NO_BROKERS", "2 problems")


def test_lists_have_pages_and_searches(fleet: ShownFleet) -> None:
    topics = tuple(f"topic-{number:03}" for number in range(120))
    for at in (0, 1):
        fleet.register(at, topics=topics)
    page = fleet.shows("/topics?contains=PIC-", "120 found", ">topic-049<", "start=50")
    assert ">topic-050<" not in page
    page = fleet.console.read("/topics?contains=PIC-&start=100")
    assert ">topic-119<" in page
    assert ">Next<" not in page
    assert "0 found" in fleet.console.read("/brokers?contains=nobody")
    assert "1 found" in fleet.console.read("/brokers?contains=BROKER-A")
    fleet.shows("/brokers?only=unhealthy", "0 found")
    for number in range(60):
        wanted = WipeWritePermOfBrokerRequest(broker_name=f"later-{number}", cluster_name="east")
        fleet.clients[0].admin.WipeWritePermOfBroker(wanted, timeout=TIMEOUT)
    (older,) = re.findall(r'href="(/journal\?before=\d+)"', fleet.console.read("/journal"))
    assert "later-0 " in fleet.console.read(older).replace(";", " ").replace(":", " ")


EVIL = {"Host": "evil.example:9880"}


def test_addresses_that_are_none_other_methods_and_other_hosts_are_refused() -> None:
    with ConsoleProcess(NOBODY) as console:
        assert console.request("/", headers=EVIL)[0] == 400
        assert console.request("/", headers={"Host": "localhost:9880"})[0] == 200
        for path in ("/nowhere", "/topic/orders", "/api/overview", "/static/nothing.js"):
            status, headers, body = console.request(path)
            assert (status, "No such page" in body) == (404, True)
            assert "default-src 'none'" in headers["content-security-policy"]
        for path in (f"/topics?contains={'x' * 256}", "/brokers?start=-1", "/journal?before=x"):
            assert console.request(path)[0] == 400
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert console.request("/", method)[0] == 405
        status, headers, body = console.request("/", "HEAD")
        assert (status, body, headers["x-content-type-options"]) == (200, "", "nosniff")
        assert "set-cookie" not in headers
        assert not [header for header in headers.values() if "unsafe-inline" in header]
        for view in VIEWS:
            assert not re.search(r"<script(?! src)|<style|\son\w+=|\sstyle=", console.read(view))
        assert console.terminate() == 0


def test_behind_a_proxy_any_host_may_be_asked_for() -> None:
    with ConsoleProcess(NOBODY, "--behind-proxy", listen="0.0.0.0:0") as console:
        console.wait_for_text("the proxy must authenticate")
        assert console.request("/", headers=EVIL)[0] == 200


def test_over_tls_with_a_token_it_shows_what_the_token_may_see_and_says_what_not(place: Place) -> None:
    flags = ("--tls-ca", str(place.authority.path), "--token-file", str(place.tokens["client"]))
    with (
        NamesrvProcess(*place.flags("token")) as namesrv,
        connected(namesrv.endpoint, place.files("token", "broker")) as broker,
        ConsoleProcess(str(namesrv.endpoint), *flags) as console,
    ):
        broker.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        eventually(lambda: console.read("/brokers"), lambda page: "1 found" in page)
        assert "NOT_PERMITTED" in console.read("/servers")
        assert "NOT_PERMITTED" in console.read("/journal")


@pytest.mark.parametrize("answer", [filled, refused], ids=lambda answer: answer.__name__)
def test_what_a_hostile_name_server_says_is_text_and_never_markup(answer: Answer) -> None:
    with hostile_server(answer) as namesrv, ConsoleProcess(str(namesrv)) as console:
        eventually(lambda: console.read("/servers"), lambda page: "connecting" not in page)
        for path in (*VIEWS, "/broker?cluster=b&name=b", f"/topic?name={'%3Cimg%3E'}"):
            _, _, body = console.request(path)
            assert "<img" not in body
            assert "Internal Server Error" not in body
        assert "Traceback" not in console.raw


async def test_a_connection_without_a_whole_head_in_time_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "HEAD_SECONDS", 0.2)
    config = uvicorn.Config(app.Pages([]).application(["*"]), **app.SERVER)
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(lambda: app.BoundedHead(config, state, {}), "127.0.0.1", 0)
    async with server, asyncio.timeout(TIMEOUT):
        for before, answer in ((b"", b""), (b"GET /brokers HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 200 OK")):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(before + b"GET / HTTP/1.1\r\n")
            with suppress(ConnectionResetError):
                assert (await reader.read()).startswith(answer)
            writer.close()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--listen", "0.0.0.0:0"), "--behind-proxy"),
        (("--listen", "nowhere"), "no port"),
        (("--tls-ca", "nowhere.pem"), "nowhere.pem"),
        *((("--" + option, "5"), f"No such option: --{option}") for option in ("output", "timeout", "watch")),
    ],
)
def test_what_it_cannot_start_with_is_said(flags: tuple[str, ...], said: str) -> None:
    refused = CliRunner().invoke(cli.app, ["console", *flags, "--namesrv", NOBODY])
    assert (refused.exit_code, said in refused.output) == (2, True), refused.output
