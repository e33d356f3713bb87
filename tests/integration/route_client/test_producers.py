"""What producers and programs use: queues, addresses, callbacks and iterators."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from route_client import AioRouteClient, ClientClosedError, ClientSettings, RouteChange, RouteClient, TopicNotFoundError
from tests.integration.route_client.sessions import QUICK, TOPIC, shows, watching
from tests.support.fakes.watched_name_server import FakeNameServer
from tests.support.patience import TIMEOUT
from tests.support.programs.processes import eventually
from tests.support.routes.wire_routes import route, wire_route


def test_a_topic_without_a_route_goes_to_the_default_topic_s_brokers_until_it_has_one(fake: FakeNameServer) -> None:
    fake.put("TBW102", wire_route("broker-d", queues=8, perm=7))
    with RouteClient(str(fake.endpoint), QUICK) as client:
        info = client.publish_info("NewTopic")
        assert (len(info.queues), info.by_default) == (4, True)
        assert client.select_one_queue("NewTopic").topic == "NewTopic"
        fake.put("NewTopic", wire_route("broker-e", queues=2))
        eventually(lambda: client.publish_info("NewTopic").by_default, lambda by_default: not by_default)
        assert client.select_one_queue("NewTopic").broker_name == "broker-e"


def test_without_a_default_topic_an_unknown_topic_is_an_error(fake: FakeNameServer) -> None:
    with RouteClient(str(fake.endpoint), QUICK) as client, pytest.raises(TopicNotFoundError, match="'NewTopic'"):
        client.publish_info("NewTopic")
    nobody_s = ClientSettings(default_topic="")
    with RouteClient(str(fake.endpoint), nobody_s) as client, pytest.raises(TopicNotFoundError, match="'NewTopic'"):
        client.publish_info("NewTopic")
    assert [TOPIC] not in fake.lookups


def test_faulty_brokers_are_avoided_if_that_is_on_and_keep_addresses(fake: FakeNameServer) -> None:
    fake.put(TOPIC, wire_route("broker-a", "broker-b"))
    with RouteClient(str(fake.endpoint), ClientSettings(send_latency_fault_enable=True)) as client:
        client.faults.report("broker-a", 0, failed=True)
        assert {client.select_one_queue(TOPIC).broker_name for _ in range(8)} == {"broker-b"}
        assert client.find_broker_address_in_publish("broker-a") == "broker-a:10911"
        assert client.find_broker_address_in_subscribe("broker-a", 1) == ("broker-a:10912", 1)
        assert client.any_broker_of(TOPIC) in {"broker-a:10911", "broker-b:10911"}


def test_a_callback_may_close_its_client(fake: FakeNameServer) -> None:
    client = RouteClient(str(fake.endpoint), QUICK)
    closed = threading.Event()

    def closes(_: RouteChange) -> None:
        client.close()
        closed.set()

    client.on_change(closes)
    with contextlib.suppress(ClientClosedError):  # the callback may come before this call returns
        client.route(TOPIC)
    assert closed.wait(TIMEOUT)


def test_changes_can_be_iterated_in_asyncio(fake: FakeNameServer) -> None:
    async def run() -> list[int]:
        seen = []
        async with AioRouteClient(str(fake.endpoint), QUICK, topics=[TOPIC]) as client:
            await asyncio.to_thread(eventually, lambda: client.status().mode, lambda mode: mode == "watch")
            with client.changes() as changes:
                fake.put(TOPIC, wire_route(queues=5))
                async for change in changes:
                    assert change.after.route is not None
                    seen.append(change.after.route.queue_datas[0].read_queue_nums)
                    if len(seen) == 3:
                        break
                    fake.put(TOPIC, wire_route(queues=5 + len(seen)))
            left = asyncio.create_task(anext(client.changes(), None))
            await asyncio.sleep(0)
        assert await left is None, "closing the client ends iterations"
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("route-client")]
        async with asyncio.timeout(TIMEOUT):  # for gRPC's own task of the call that was cancelled
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
        return seen

    assert asyncio.run(run()) == [5, 6, 7]


def test_the_environment_names_name_servers_also_by_dns(fake: FakeNameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"dns:localhost:{fake.endpoint.port}")
    with RouteClient(settings=QUICK) as client:
        assert client.route(TOPIC).route == route()


def test_many_topics_are_watched_by_one_stream_and_looked_up_in_batches(fake: FakeNameServer) -> None:
    names = [f"topic-{number}" for number in range(1_100)]
    for name in names:
        fake.put(name, wire_route())
    with RouteClient(str(fake.endpoint), QUICK, topics=names) as client:
        watching(client, fake)
        fake.put(names[-1], wire_route("broker-z"))
        shows(client, "broker-z", topic=names[-1])
    assert [len(asked) for asked in fake.lookups] == [500, 500, 100]
    assert [len(request.topics) for request in fake.watch_requests] == [1_100]
