"""The console over HTTP, in front of real name servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from nsctl.console.app import MAX_NAME_SERVERS
from nsctl.console.protection import MAX_VIEWERS
from tests.support.programs.console_process import ConsoleProcess
from tests.support.programs.processes import BIN, Client, NamesrvProcess, OpenedChannel, ended, eventually
from tests.support.registrations import identity, registration
from tests.support.secured.fleet import Place, connected

NOBODY = "127.0.0.1:1"
SENT_BY_PAGE = {"Content-Type": "application/json", "X-Namesrv-Console": "1"}


class Fleet:
    """Two name servers with a broker each that both know, and a console in front of them."""

    def __init__(self, servers: list[NamesrvProcess], clients: list[Client], console: ConsoleProcess) -> None:
        self.servers, self.clients, self.console = servers, clients, console
        self.channels: list[OpenedChannel] = []

    def register(self, at: int, broker: str = "broker-a", topics: tuple[str, ...] = ("orders",)) -> OpenedChannel:
        channel = self.clients[at].open_channel()
        request = registration(topics, identity(f"{broker}:10911", 0, broker), channel_id=channel.id)
        self.clients[at].registration.RegisterBroker(request, timeout=20)
        self.channels.append(channel)  # a stream that nobody holds ends
        return channel

    def brokers(self) -> list[tuple[str, str, list[int]]]:
        found = self.console.ask("/api/brokers")["brokers"]
        return [(broker["broker"], broker["state"], broker["missingAt"]) for broker in found]

    def states(self) -> list[str]:
        return [server["state"] for server in self.console.ask("/api/overview")["servers"]]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(NamesrvProcess("--name", name, "--data-dir", str(tmp_path / name)))
            for name in ("ns-a", "ns-b")
        ]
        clients = [stack.enter_context(server.connect()) for server in servers]
        namesrv = ";".join(str(server.endpoint) for server in servers)
        console = stack.enter_context(ConsoleProcess(namesrv, "--permit-actions"))
        yield Fleet(servers, clients, console)


def test_brokers_come_and_a_lost_one_goes_with_its_reason_in_the_journal(fleet: Fleet) -> None:
    for at in (0, 1):
        fleet.register(at, "broker-a")
    lost = [fleet.register(at, "broker-b") for at in (0, 1)]
    eventually(fleet.brokers, lambda brokers: [state for _, state, _ in brokers] == ["live", "live"])
    for channel in lost:
        channel.close()
    eventually(fleet.brokers, lambda brokers: brokers == [("broker-a", "live", []), ("broker-b", "left", [])])
    assert fleet.console.ask("/api/brokers?unhealthy=1")["matched"] == 1
    (cluster,) = fleet.console.ask("/api/clusters")["clusters"]
    assert (cluster["brokers"], cluster["states"], len(cluster["rows"])) == (1, {"left": 1}, 2)
    assert [said["text"].rpartition(" ")[2] for said in fleet.console.ask("/api/overview")["news"]][-1] == "left"

    def latest() -> dict[str, Any]:
        entry: dict[str, Any] = fleet.console.ask("/api/overview")["latest"][0]
        return entry

    entry = eventually(latest, lambda entry: len(entry["servers"]) == 2)
    assert "lost its channel" in entry["summary"]
    (first, *_) = fleet.console.ask("/api/journal?broker=broker-b")["entries"]
    assert first["summary"] == entry["summary"]
    assert first["mentions"][0] | {"at": 0} == {
        "at": 0,
        "broker": "broker-b",
        "cluster": "DefaultCluster",
    }


def test_name_servers_that_hold_something_else_are_told_apart(fleet: Fleet) -> None:
    for at in (0, 1):
        fleet.register(at, "broker-a", ("orders", "payments")[: at + 1])
    fleet.register(1, "broker-b")

    def differences() -> list[list[str]]:
        return [difference["said"] for difference in fleet.console.ask("/api/overview")["differences"]]

    said = eventually(differences, lambda found: len(found) == 2)
    assert said[0][0] != said[0][1]
    assert said[1][0] == "not there"
    assert ("broker-b", "partly", [0]) in fleet.brokers()
    found = fleet.console.ask("/api/topics?differing=1")
    missing = {topic["name"]: topic["missingAt"] for topic in found["topics"]}
    assert missing["payments"] == [0]
    assert "orders" not in missing


def test_one_that_is_unreachable_is_shown_so_and_the_others_are_shown(fleet: Fleet) -> None:
    fleet.register(1)
    eventually(fleet.brokers, lambda brokers: brokers == [("broker-a", "partly", [0])])
    fleet.servers[0].kill()
    assert eventually(fleet.states, lambda states: states[0] == "unreachable") == ["unreachable", "ready"]
    eventually(fleet.brokers, lambda brokers: brokers == [("broker-a", "live", [])])
    answers = fleet.console.ask("/api/route?topic=orders")["answers"]
    assert answers[0]["problem"]["unreachable"]
    assert [group["broker_name"] for group in answers[1]["groups"]] == ["broker-a"]
    assert fleet.console.ask("/api/topics")["problems"][0]["unreachable"]


def test_when_all_die_the_last_that_was_seen_stays_and_is_marked_until_one_is_back(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.register(0)
    eventually(fleet.brokers, bool)
    for server in fleet.servers:
        server.kill()
    overview = eventually(lambda: fleet.console.ask("/api/overview"), lambda overview: overview["stale"])
    assert [broker["broker"] for broker in fleet.console.ask("/api/brokers")["brokers"]] == ["broker-a"]
    assert all(server["problem"] for server in overview["servers"])
    with NamesrvProcess("--data-dir", str(tmp_path / "ns-a"), port=fleet.servers[0].endpoint.port):
        eventually(lambda: fleet.console.ask("/api/overview"), lambda overview: not overview["stale"])
        assert fleet.states() == ["ready", "unreachable"]


def test_topics_are_searched_and_paged_and_a_route_is_explained(fleet: Fleet) -> None:
    topics = tuple(f"topic-{number:04}" for number in range(250))
    for at in (0, 1):
        fleet.register(at, topics=topics)
    first = eventually(
        lambda: fleet.console.ask("/api/topics?contains=PIC-0"), lambda found: found["matched"] == 250, 10
    )
    assert [topic["name"] for topic in first["topics"]] == list(topics[:100])
    last = fleet.console.ask("/api/topics?contains=PIC-0&start=200")
    assert [topic["name"] for topic in last["topics"]] == list(topics[200:])
    (route, _) = fleet.console.ask("/api/route?topic=topic-0001")["answers"]
    assert route["groups"][0]["broker_addrs"] == [{"broker_id": 0, "broker_addr": "broker-a:10911"}]
    assert route["explanations"][0]["state"] == "IN_ROUTE"
    address = "/api/broker?cluster=DefaultCluster&broker=broker-a&contains=PIC-&start=200"
    told = eventually(lambda: fleet.console.ask(address), lambda told: bool(told["topics"]["rows"]))
    assert [row["topic"] for row in told["topics"]["rows"]] == list(topics[200:])
    assert [broker["addr"] for broker in told["brokers"]] == ["broker-a:10911"]
    assert told["registeredBy"] == {"broker-a:10911": "127.0.0.1"}


def test_a_drain_is_previewed_then_done_at_all_and_restored(fleet: Fleet) -> None:
    for at in (0, 1):
        fleet.register(at)
    action = {"broker": "broker-a", "cluster": "DefaultCluster", "why": "new disks"}
    preview = fleet.console.act(action="drain", preview=True, **action)["results"]
    assert [result["topics_losing_last_writable_queue"] > 0 for result in preview] == [True, True]
    assert [result["in_use"]["topics"] for result in preview] == [["orders"], ["orders"]]
    (refused, _) = fleet.console.act(action="drain", preview=False, **action)["results"]
    assert refused["problem"]["reason"] == "TOPICS_IN_USE"
    assert not fleet.console.ask("/api/overview")["intents"]
    fleet.console.act(action="drain", preview=False, force=True, **action)

    def intents() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = fleet.console.ask("/api/overview")["intents"]
        return found

    (intent,) = eventually(intents, lambda found: len(found) == 1 and found[0]["servers"] == [0, 1])
    assert intent["comment"] == "new disks (console, asked by 127.0.0.1)"
    fleet.console.act(action="restore", preview=False, **action)
    eventually(intents, lambda found: found == [])
    (absent, _) = fleet.console.act(action="drain", preview=True, broker="nobody", cluster="c")["results"]
    assert (absent["awaits_registration"], absent["topics_changed"]) == (True, 0)


def test_what_other_pages_could_send_is_refused(fleet: Fleet) -> None:
    action = {"action": "drain", "broker": "broker-a", "cluster": "DefaultCluster", "preview": True}

    def status(headers: dict[str, str], body: object = action) -> int:
        return fleet.console.request("/api/actions", "POST", headers, body)[0]

    assert status(SENT_BY_PAGE) == 200
    assert status({"Content-Type": "application/json"}) == 403
    assert status({**SENT_BY_PAGE, "Origin": "http://evil.example"}) == 403
    assert status({**SENT_BY_PAGE, "Sec-Fetch-Site": "cross-site"}) == 403
    assert status({**SENT_BY_PAGE, "Content-Type": "text/plain"}) == 415
    assert status(SENT_BY_PAGE, b"{") == 400
    assert status(SENT_BY_PAGE, {**action, "preview": "no"}) == 400
    assert status(SENT_BY_PAGE, b" " * 20_000) == 413
    assert fleet.console.request("/api/overview", headers={"Host": "evil.example"})[0] == 421
    assert fleet.console.request("/", headers={"Host": "evil.example:9880"})[0] == 421
    assert status(SENT_BY_PAGE, {"action": "drain", "preview": True}) == 400, "only a loss is confirmed of all"
    long_text, long_list = "x" * 256, "x," * 2_049
    bad = ("topics?start=-1", f"topics?contains={long_text}", "route", "journal?before=x", f"clusters?open={long_list}")
    for path in (*bad, "broker?broker=broker-a"):
        code, headers, body = fleet.console.request(f"/api/{path}")
        assert (code, json.loads(body)["problem"]["reason"]) == (400, "INVALID_FIELD")
        assert "default-src 'none'" in headers["content-security-policy"]
    assert fleet.console.request("/nothing")[0] == 404


def test_over_tls_with_a_token_it_shows_what_the_token_may_see_and_says_what_not(place: Place) -> None:
    flags = ("--tls-ca", str(place.authority.path), "--token-file", str(place.tokens["client"]))
    with (
        NamesrvProcess(*place.flags("token")) as namesrv,
        connected(namesrv.endpoint, place.files("token", "broker")) as broker,
        ConsoleProcess(str(namesrv.endpoint), *flags, "--permit-actions") as console,
    ):
        broker.registration.RegisterBroker(registration(), timeout=20)
        overview = eventually(lambda: console.ask("/api/overview"), lambda told: told["figures"]["brokers"] == 1)
        assert overview["servers"][0]["refusal"].startswith("NOT_PERMITTED")
        (refused,) = console.act(action="drain", broker="broker-a", cluster="DefaultCluster", preview=True)["results"]
        assert refused["problem"]["reason"] == "NOT_PERMITTED"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--namesrv", "nowhere"), "has no port"),
        (("--namesrv", NOBODY, "--listen", "0.0.0.0:0"), "beyond loopback"),
        (("--namesrv", NOBODY, "--tls-ca", "nowhere.pem"), "nowhere.pem"),
        (("--namesrv", NOBODY, "--token-file", "token"), "needs tls_ca"),
        (("--context", "nowhere"), "contexts.toml"),
        (("--namesrv", ";".join(f"a:{port}" for port in range(1, MAX_NAME_SERVERS + 2))), "at most 16"),
        ((), "which name servers?"),
    ],
)
def test_what_it_cannot_start_with_is_said_in_one_line(flags: tuple[str, ...], said: str) -> None:
    command = [str(BIN / "nsctl"), "console", "--listen", "127.0.0.1:0", *flags]
    done = ended(command)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_pages_are_told_at_once_and_beyond_so_many_the_oldest_gives_way() -> None:
    with ConsoleProcess(NOBODY) as console, ExitStack() as stack:

        def listen() -> HTTPConnection:
            connection = HTTPConnection(*console.endpoint, timeout=20)
            connection.request("GET", "/api/events")
            return stack.enter_context(closing(connection))

        pages = [listen() for _ in range(MAX_VIEWERS)]
        events = [page.getresponse() for page in pages]
        for event in events:
            assert event.readline() == b"retry: 2000\n"
            assert set(json.loads(event.readline().removeprefix(b"data: "))) == {"version", "now"}
            stack.callback(event.close)
        newest = listen().getresponse()
        stack.callback(newest.close)
        assert newest.status == 200
        assert newest.readline() == b"retry: 2000\n"
        assert events[0].read().endswith(b"\n"), "the oldest stream comes to its end"


def test_without_a_permit_nothing_can_be_done_and_it_ends_when_told() -> None:
    with ConsoleProcess(NOBODY) as console:
        refused = console.act(action="drain", broker="broker-a", cluster="c", preview=True)
        assert refused["problem"]["reason"] == "ACTIONS_NOT_PERMITTED"
        assert console.ask("/api/overview")["permitActions"] is False
        assert console.terminate() == 0
