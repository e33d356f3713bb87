"""What programs see of a client while name servers come and go, by a watch or by polling; its calls, and an example."""

from __future__ import annotations

import asyncio
import logging
import operator
import random
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
from namesrv_api.v1 import admin_service_pb2

from clients.conformance import python_client
from clients.conformance.play import CASES, Case, play
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import RichError
from route_client import (
    AioRouteClient,
    BadTopicNameError,
    ClientClosedError,
    ClientSettings,
    KnownRoute,
    NoNamesrvAnsweredError,
    RequestRefusedError,
    RouteChange,
    RouteClient,
    Stale,
    TooManyTopicsError,
    TopicNotFoundError,
    cache,
)
from route_client.watch_stream import WatchBroken, WatchStream
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.fakes.watched_name_server import EXPIRED, FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import Agent, joined
from tests.support.programs.processes import NamesrvProcess, Process, ended, eventually
from tests.support.registrations import register, unregister
from tests.support.routes.wire_routes import route, wire_route

TOPIC = "TopicTest"
NOBODY = "127.0.0.1:1"
QUICK = ClientSettings(poll_seconds=0.05, timeout_seconds=TIMEOUT)


@pytest.fixture(autouse=True)
def _nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.ERROR, logger="asyncio"):
        yield
    eventually(lambda: [t.name for t in threading.enumerate() if t.name.startswith("route-client")], lambda t: not t)
    complaints = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert not complaints


@pytest.fixture
def fake() -> Iterator[FakeNameServer]:
    with FakeNameServer() as server:
        server.put(TOPIC, wire_route())
        yield server


class InOrder(random.Random):
    """Has a client begin with the first name server of its list."""

    def shuffle(self, x: object) -> None:
        """Leaves it as it is."""


def watching(client: RouteClient | AioRouteClient, server: FakeNameServer | NamesrvProcess) -> None:
    eventually(client.status, lambda status: status.mode == "watch" and status.endpoint == server.endpoint)


def shows(client: RouteClient, *groups: str, topic: str = TOPIC, stale: Stale | None = None, **kwargs: Any) -> None:
    """Waits until the client's route has these groups."""

    def matches(known: KnownRoute | None) -> bool:
        return known is not None and known.route == route(*groups, **kwargs) and known.stale == stale

    eventually(lambda: client.cached(topic), matches)


async def test_topics_are_looked_up_in_batches_and_share_one_watch(fake: FakeNameServer) -> None:
    topics = [f"topic-{number}" for number in range(1_105)]
    for topic in topics:
        fake.put(topic, wire_route())
    first, later = topics[:1_100], topics[1_100:]
    async with AioRouteClient(str(fake.endpoint), QUICK, topics=first) as client:
        await asyncio.to_thread(watching, client, fake)
        await asyncio.gather(*(client.route(topic) for topic in later * 4))
        await asyncio.to_thread(eventually, lambda: len(fake.watch_updates), lambda number: number == 1)
        with client.changes([later[3], first[-1]]) as changes:
            for topic in (later[3], first[-1]):
                fake.put(topic, wire_route("broker-z"))
                change = await anext(aiter(changes))
                assert (change.topic, change.new_route) == (topic, route("broker-z"))
    assert [len(asked) for asked in fake.lookups] == [500, 500, 100, 5], "each topic once"
    assert [len(request.topics) for request in (*fake.watch_requests, *fake.watch_updates)] == [1_100, 5]


def test_a_missing_topic_is_asked_for_once_and_a_bad_or_surplus_one_never(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), replace(QUICK, max_topics=1), topics=["Later"]) as client:
        watching(client, fake)
        for _ in range(3):
            with pytest.raises(TopicNotFoundError, match="ns-a knows no topic 'Later'"):
                client.route("Later")
        with pytest.raises(BadTopicNameError, match="name"):
            client.route("not\ta name")
        with pytest.raises(TooManyTopicsError, match=r"1 topics.*'Other'"):
            client.route("Other")
        assert (fake.lookups, len(fake.watch_requests)) == ([["Later"]], 1)
        fake.put("Later", wire_route())
        shows(client, topic="Later")
        client.forget("Later")
        assert client.cached("Later") is None
        with pytest.raises(TopicNotFoundError):
            client.route("Other")


def test_a_topic_too_many_has_routes_polled_until_there_is_a_watch(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.keeper.RESYNC_SECONDS", 1.0)
    too_many = (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED", None)
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC, "Other"]) as client:
        watching(client, fake)
        fake.update_refusals, fake.refusals = [too_many], [too_many] * 99
        with pytest.raises(TopicNotFoundError):
            client.route("TooMany")
        eventually(lambda: client.status().mode, lambda mode: mode == "poll")
        assert "LIMIT_EXCEEDED" in client.status().last_error
        fake.put("Other", wire_route())
        assert client.route("Other").route == route(), "nobody tells changes any more, so it is looked up"
        fake.put(TOPIC, wire_route("broker-b"))
        shows(client, "broker-b")
        fake.put(TOPIC, None)
        shows(client, "broker-b", stale=Stale.HELD)
        assert client.status().held_topics == (TOPIC,)
        fake.refusals.clear()
        watching(client, fake)


def test_a_watch_that_is_refused_or_fails_is_opened_again(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake.refusals = [(grpc.StatusCode.CANCELLED, "CANCELLED", None)]
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        assert "CANCELLED" in client.status().last_error
        fake.refusals = [(grpc.StatusCode.OUT_OF_RANGE, "REVISION_NOT_REACHED", 0.05)]
        fake.cut_watches()
        *_, refused, resumed = eventually(lambda: fake.watch_requests, lambda requests: len(requests) == 4)
        watching(client, fake)
        assert refused.HasField("resume_after")
        assert resumed.resume_after == refused.resume_after
        for number, error in ((5, WatchBroken("a broken contract")), (6, RuntimeError("a defect"))):

            def fails(_stream: WatchStream, _response: object, error: Exception = error) -> None:
                monkeypatch.undo()
                raise error

            assert "a defect of the client" not in caplog.text
            monkeypatch.setattr(WatchStream, "take", fails)
            fake.put(f"topic-{number}", wire_route())
            eventually(lambda: len(fake.watch_requests), partial(operator.eq, number))
            watching(client, fake)
            assert str(error) in client.status().last_error
        assert len(fake.watch_requests) == 6
    assert "a defect of the client" in caplog.text


def test_a_name_server_that_cannot_be_watched_is_passed_over(
    fake: FakeNameServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        FakeNameServer("ns-b") as expires,
        FakeNameServer("ns-c") as unready,
        FakeNameServer("ns-d", garbles=True) as garbles,
        ScriptedNamesrv() as another_service,
    ):
        expires.refusals = [EXPIRED]
        unready.serve(ready=False)
        for passed_over, problem in (
            (expires, "WATCH_EXPIRED"),
            (unready, "says that it is not ready"),
            (garbles, "INTERNAL"),
            (another_service, "UNIMPLEMENTED"),
        ):
            with RouteClient(joined(passed_over, fake), QUICK, [TOPIC], InOrder()) as client:
                watching(client, fake)
                assert problem in client.status().last_error
                assert client.route(TOPIC).route == route()
    assert "a defect of the client" not in caplog.text


def test_of_unready_name_servers_the_first_that_becomes_ready_is_found(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("route_client.keeper.UNREADY_SECONDS", 0.1)
    with FakeNameServer(name="ns-b") as other:
        fakes = {server.endpoint: server for server in (fake, other)}
        for server in fakes.values():
            server.serve(ready=False)
        with RouteClient([str(endpoint) for endpoint in fakes], QUICK, topics=[TOPIC]) as client:
            status = eventually(client.status, lambda status: status.endpoint is not None)
            (waiting,) = (server for endpoint, server in fakes.items() if endpoint != status.endpoint)
            waiting.serve(ready=True)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == waiting.endpoint)


@pytest.mark.parametrize("watches", [True, False])
def test_polls_notice_what_no_watch_tells_and_who_is_not_ready_any_more(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    monkeypatch.setattr("route_client.keeper.RESYNC_SECONDS", 0.1 if watches else 99.0)

    def says_nothing(message: Any) -> Any:
        del message.changes[:]
        return message

    fake.spoil = says_nothing
    with FakeNameServer(name="ns-b") as other:
        for server in () if watches else (fake, other):
            server.refusals = [(grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED", None)] * 99
        other.put(TOPIC, wire_route("broker-b"))
        with RouteClient(joined(fake, other), QUICK, [TOPIC], InOrder()) as client:
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == fake.endpoint)
            fake.put(TOPIC, wire_route("broker-c"))
            shows(client, "broker-c")
            fake.serve(ready=False)
            eventually(lambda: client.status().endpoint, lambda endpoint: endpoint == other.endpoint)
            shows(client, "broker-b")


@pytest.mark.parametrize("timeout_seconds", [0.5, TIMEOUT])  # the call ends with an error, or is hedged
def test_a_name_server_that_lets_a_lookup_wait_is_asked_last(fake: FakeNameServer, timeout_seconds: float) -> None:
    with FakeNameServer(name="ns-b") as hanging:
        hanging.hold_lookups = threading.Event()
        settings = ClientSettings(timeout_seconds=timeout_seconds)
        with RouteClient(joined(hanging, fake), settings, rng=InOrder()) as client:
            assert client.route(TOPIC).route == route()
            assert client._chooser.in_order() == [fake.endpoint, hanging.endpoint]
            hanging.hold_lookups.set()


def test_routes_stay_confirmed_while_the_second_name_server_is_asked(fake: FakeNameServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = joined(fake, Endpoint(*silent.getsockname()))
        with RouteClient(endpoints, ClientSettings(timeout_seconds=TIMEOUT), [TOPIC], InOrder()) as client:
            watching(client, fake)
            fake.stop()
            eventually(client.status, lambda status: status.mode == "disconnected")
            assert client.route(TOPIC).stale is None


def test_while_nobody_answers_routes_come_from_disk_or_errors_name_all(fake: FakeNameServer, tmp_path: Path) -> None:
    settings = ClientSettings(cache_dir=tmp_path, timeout_seconds=TIMEOUT, hold_seconds=0)
    fake.put("Other", wire_route("broker-b"))
    with RouteClient(str(fake.endpoint), settings, topics=[TOPIC, "Other"]):
        pass  # closing saves
    fake.stop()
    with RouteClient(f"{NOBODY};{fake.endpoint}", settings, topics=[TOPIC]) as client:
        known = client.route(TOPIC)
        assert (known.route, known.stale, known.origin) == (route(), Stale.FROM_DISK, None)
        assert client.route("Other").stale is Stale.FROM_DISK
        assert client.select_one_queue(TOPIC).broker_name == "broker-a"
        with pytest.raises(NoNamesrvAnsweredError, match=r"127\.0\.0\.1:1: UNAVAILABLE") as caught:
            client.route("never-seen")
        assert {str(endpoint) for endpoint in caught.value.errors} == {NOBODY, str(fake.endpoint)}
        fake.start()
        shows(client)
        watching(client, fake)
        fake.put(TOPIC, None)
        eventually(lambda: [*tmp_path.iterdir()], lambda files: len(files) == 1)


def test_a_topic_without_a_route_goes_to_the_default_topics_brokers(fake: FakeNameServer) -> None:
    for settings in (QUICK, ClientSettings(default_topic="")):
        with RouteClient(str(fake.endpoint), settings) as client, pytest.raises(TopicNotFoundError, match="'NewTopic'"):
            client.publish_info("NewTopic")
    fake.put("TBW102", wire_route("broker-d", queues=8, perm=7))
    with RouteClient(str(fake.endpoint), QUICK) as client:
        info = client.publish_info("NewTopic")
        assert (len(info.queues), info.by_default) == (4, True)

        def asks() -> bool:
            asked = len(fake.lookups)
            client.publish_info("NewTopic")
            return len(fake.lookups) > asked

        eventually(asks, lambda does: not does)
        assert client.select_one_queue("NewTopic").topic == "NewTopic"
        fake.put("NewTopic", wire_route("broker-e", queues=2))
        eventually(lambda: client.publish_info("NewTopic").by_default, lambda by_default: not by_default)
        assert client.select_one_queue("NewTopic").broker_name == "broker-e"


async def test_the_asyncio_client_answers_as_the_blocking_one_and_leaves_no_task(fake: FakeNameServer) -> None:
    fake.put(TOPIC, wire_route("broker-a", "broker-b"))
    fake.put("TBW102", wire_route("broker-d", queues=8, perm=7))
    async with AioRouteClient(str(fake.endpoint), replace(QUICK, send_latency_fault_enable=True)) as client:
        client.faults.report("broker-a", 0, failed=True)
        assert {(await client.select_one_queue(TOPIC)).broker_name for _ in range(8)} == {"broker-b"}
        assert client.find_broker_address_in_publish("broker-a") == "broker-a:10911"
        assert client.find_broker_address_in_subscribe("broker-a", 1) == ("broker-a:10912", 1)
        assert (await client.publish_info("NewTopic")).by_default
        with await asyncio.to_thread(RouteClient, str(fake.endpoint), QUICK) as blocking:
            assert await client.subscribe_info(TOPIC) == await asyncio.to_thread(blocking.subscribe_info, TOPIC)
            anywhere = {await client.any_broker_of(TOPIC), await asyncio.to_thread(blocking.any_broker_of, TOPIC)}
            assert anywhere <= {"broker-a:10911", "broker-b:10911"}
        client.forget(TOPIC)
        assert client.cached(TOPIC) is None
        await asyncio.to_thread(watching, client, fake)
        reading = asyncio.create_task(anext(client.changes(), None))
        await asyncio.sleep(0)
    assert await reading is None
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("route-client")]


def test_the_environment_names_name_servers_by_a_name_that_is_resolved_again(
    fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, failures = socket.getaddrinfo, iter(range(2))

    def fails_twice(host: str, port: int, *arguments: Any, **named: Any) -> Any:
        if host != "fleet.invalid":
            return resolve(host, port, *arguments, **named)
        if next(failures, None) is not None:
            raise socket.gaierror("it is not there yet")
        found = [("127.0.0.1", port), ("127.0.0.2", port), ("127.0.0.1", port)]
        both = [(socket.AF_INET, address) for address in found] + [(socket.AF_INET6, ("::1", port, 0, 0))]
        return [(family, socket.SOCK_STREAM, 6, "", address) for family, address in both]

    monkeypatch.setattr(socket, "getaddrinfo", fails_twice)
    monkeypatch.setattr("route_client.endpoints.REFRESH_SECONDS", 0.05)
    monkeypatch.setenv("NAMESRV_ADDR", f"{NOBODY};dns:fleet.invalid:{fake.endpoint.port}")
    with RouteClient(settings=QUICK) as client:
        watching(client, fake)
        assert client.route(TOPIC).route == route()
        fake.stop()
        with pytest.raises(NoNamesrvAnsweredError) as caught:
            client.route("never-seen")
    expected = [NOBODY, str(fake.endpoint), f"127.0.0.2:{fake.endpoint.port}"]
    assert sorted(map(str, caught.value.errors)) == sorted(expected), "addresses of IPv4 alone"


async def test_a_client_whose_first_topics_are_refused_does_not_start(fake: FakeNameServer) -> None:
    fake.refusal = RichError(grpc.StatusCode.PERMISSION_DENIED, "you may not look up", "NOT_PERMITTED", "namesrv")
    with pytest.raises(RequestRefusedError, match="you may not look up"):
        await asyncio.to_thread(RouteClient, str(fake.endpoint), QUICK, topics=[TOPIC])
    with pytest.raises(RequestRefusedError, match="you may not look up"):
        await AioRouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]).__aenter__()


def test_topics_left_out_of_an_answer_are_asked_for_again_unless_too_large(fake: FakeNameServer) -> None:
    fake.most_topics, fake.too_large = 1, "Large"
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC, "Other", "Large"]) as client:
        assert client.route(TOPIC).route == route()
        assert client.status().counters.refused == 1
        assert fake.lookups[:2] == [[TOPIC, "Other", "Large"], ["Other", "Large"]]
        fake.most_topics = 0
        with pytest.raises(NoNamesrvAnsweredError, match="leaves all topics of a batch out"):
            client.route("Never")


def test_impossible_and_too_large_routes_are_refused_and_the_old_one_stays(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
        watching(client, fake)
        fake.put(TOPIC, wire_route("broker-b", queues=70_000))
        eventually(lambda: client.status().counters.refused)
        assert client.route(TOPIC).route == route()
        fake.put("Impossible", wire_route(queues=70_000))
        problem = "the route of topic 'Impossible': read_queue_nums of broker 'broker-a' is 70000, not 0 to 65535"
        with pytest.raises(NoNamesrvAnsweredError, match=problem):
            client.route("Impossible")
        fake.put(TOPIC, wire_route("broker-c"))
        shows(client, "broker-c")
        fake.put("Large", wire_route())
        problem = r"all routes would have \d+ bytes, over the limit of 10"
        with mock.patch.object(cache, "MAX_ROUTE_BYTES", 10), pytest.raises(NoNamesrvAnsweredError, match=problem):
            client.route("Large")


def test_a_client_that_a_callback_closes_says_so_also_to_callers_that_wait(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK, topics=[TOPIC])
    watching(client, fake)
    fake.hold_lookups, closed = threading.Event(), threading.Event()

    def closes(_: RouteChange) -> None:
        client.close()
        closed.set()

    client.on_change(closes)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.route, "Other")
        eventually(lambda: ["Other"] in fake.lookups)
        fake.put(TOPIC, wire_route("broker-b"))
        assert closed.wait(TIMEOUT)
        client.close()
        for ask in (partial(client.route, TOPIC), waiting.result):
            with pytest.raises(ClientClosedError):
                ask()
        fake.hold_lookups.set()
    eventually(lambda: fake.open_watches, lambda number: number == 0)


@pytest.mark.parametrize("case", CASES, ids=operator.itemgetter("id"))
def test_a_case_of_what_every_client_must_do_is_passed(case: Case) -> None:
    play(case, [sys.executable, python_client.__file__])


def test_a_name_server_that_hangs_is_noticed_by_its_missing_pings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("route_client.namesrv.KEEPALIVE_SECONDS", 1)
    quick_pings, settings = ("--keepalive-time-millis", "1000"), ClientSettings(timeout_seconds=2)
    with (
        NamesrvProcess(*quick_pings) as hangs,
        NamesrvProcess(*quick_pings) as left,
        RouteClient(joined(hangs, left), settings, [TOPIC], InOrder()) as client,
    ):
        watching(client, hangs)
        hangs.signal(signal.SIGSTOP)
        watching(client, left)
        with left.connect() as broker:
            register(broker, TOPIC)
        eventually(lambda: client.find_broker_address_in_publish("broker-a"))
        hangs.signal(signal.SIGCONT)


IN_A_FORKED_CHILD = """
import os, signal, sys
from route_client import ForkedProcessError, RouteClient

with RouteClient("127.0.0.1:1") as client:
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    signal.alarm(20)
    for ask in (client.route, client.publish_info, client.forget):
        try:
            ask("TopicTest")
        except ForkedProcessError as error:
            print(error, flush=True)
    client.close()
    os._exit(0)
"""


def test_a_forked_child_is_told_to_create_a_client_after_the_fork() -> None:
    # gRPC's handlers may keep the child from this code.
    program = ended([sys.executable, "-c", IN_A_FORKED_CHILD], {"GRPC_ENABLE_FORK_SUPPORT": "0"})
    lines = program.stdout.splitlines()
    assert (len(lines), program.returncode) == (3, 0), program.stderr
    assert all(line.endswith("create the client after the fork") for line in lines)


# The example of a producer and real processes: what it prints while they come, go and die.

EXAMPLE = Path(__file__).parents[3] / "examples" / "producer.py"


def test_the_example_prints_each_change_as_it_happens_and_wrong_arguments() -> None:
    wrong = ended([sys.executable, str(EXAMPLE), "--namesrv", "nowhere", TOPIC])
    assert wrong.returncode == 1
    assert "producer: address 'nowhere' has no port" in wrong.stderr
    quiet = ("--seconds", "60", "--rate", "0", TOPIC)
    with (
        NamesrvProcess() as server,
        server.connect() as broker,
        Process([sys.executable, str(EXAMPLE), "--namesrv", str(server.endpoint), *quiet], pipes=True) as example,
    ):
        _, output = example.pipes
        assert "knows no topic 'TopicTest'; waiting for it" in output.readline()
        register(broker, TOPIC)
        assert "TopicTest: send to 4 queues of broker-a" in output.readline()
        register(broker, TOPIC, name="broker-b", port=10921)
        assert "send to 4 queues of broker-a, 4 queues of broker-b" in output.readline()
        unregister(broker)
        assert "send to 4 queues of broker-b; 127.0.0.1:10911 left: UNREGISTERED" in output.readline()
        server.kill()
        assert "no name server can be reached; going on with this route" in output.readline()
        with NamesrvProcess(port=server.endpoint.port) as back, back.connect() as again:
            assert "nobody says why; going on with the old route" in output.readline()
            register(again, TOPIC, name="broker-b", port=10921)
            assert "confirmed by a name server" in output.readline()
            example.signal(signal.SIGINT)
            assert example.wait() == 0


def test_the_example_loses_no_message_to_a_lost_name_server_a_lost_broker_or_a_drain(tmp_path: Path) -> None:
    read: list[str] = []

    def wait_for(*texts: str) -> None:
        """Reads until a line ends with these texts, each with a number behind it if it ends with a space."""
        pattern = "".join(re.escape(text) + (r"\d+" if text.endswith(" ") else ".*") for text in texts)
        for line in output:
            read.append(line)
            if re.search(f"{pattern}$", line):
                return
        raise AssertionError("".join(read[-20:]))

    with ExitStack() as stack:
        servers = [stack.enter_context(NamesrvProcess("--data-dir", str(tmp_path / name))) for name in "ab"]
        namesrv, brokers = joined(*servers), {}
        for name in ("broker-a", "broker-b"):
            brokers[name] = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=4_096))
            addr = f"127.0.0.1:{brokers[name].getsockname()[1]}"
            stack.enter_context(Agent(namesrv, "--broker-name", name, broker_addr=addr, probe="tcp"))
        for server in servers:
            with server.connect() as client:
                eventually(
                    partial(client.route, TOPIC), lambda route: route is not None and len(route.broker_datas) == 2
                )
        program = [sys.executable, str(EXAMPLE), "--namesrv", namesrv, "--rate", "200", "--seconds", "120", TOPIC]
        _, output = stack.enter_context(Process(program, pipes=True)).pipes
        wait_for("sent to broker-a ", ", broker-b ")
        with servers[1].connect() as client:
            servers[0].kill()
            wait_for("sent to broker-a ", ", broker-b ")
            drain = admin_service_pb2.WipeWritePermOfBrokerRequest(broker_name="broker-a")
            client.admin.WipeWritePermOfBroker(drain, timeout=20)
            wait_for("sent to broker-b ")
            restore = admin_service_pb2.AddWritePermOfBrokerRequest(broker_name="broker-a")
            client.admin.AddWritePermOfBroker(restore, timeout=20)
            wait_for("sent to broker-a ", ", broker-b ")
            brokers["broker-b"].close()
            wait_for("BROKER_DOWN")
            wait_for("sent to broker-a ")
    assert not [line for line in read if "nobody" in line]
