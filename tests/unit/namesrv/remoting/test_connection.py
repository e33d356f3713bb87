"""The requests of one connection: their order, their shares, its end, and permits that change while they wait."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from pathlib import Path

import pytest

from namesrv.app.access import Authorizer
from namesrv.core.changes import Cause
from namesrv.core.model import ORDER_TOPIC_CONFIG, KvConfigTable
from namesrv.remoting.caller import ANONYMOUS, Gate, Grade
from namesrv.remoting.calls import TOPIC_LISTS
from namesrv.remoting.wire import RequestCode
from namesrv_common.server.permits import BrokerPattern, Permits, Principal
from namesrv_common.server.shares import Sharer
from tests.support.programs.rocketmq import broker_fields, frame, registration_body
from tests.support.socketless_front import SentFrame, SocketlessClient, connected
from tests.support.state_changes import HeldWork
from tests.unit.namesrv.servicers import holding, until

LOOKUP = frame(105, {"topic": "NOPE"})
LIST = frame(206)
REGISTRATION = frame(103, broker_fields(), registration_body(["A"]))


async def test_requests_that_wait_for_their_turn_are_all_answered_in_their_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        codes = [206, 304, 311, 106, 312, 313] * 7
        assert len(await client.send([frame(code) for code in codes])) == len(codes)
        assert [code for code, _ in front.told] == codes


async def test_a_registration_whose_connection_ends_before_its_turn_is_not_half_done(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        before, writer = front.state(), front._writer
        async with holding(writer, front.fleet.state):
            client.receive(LIST + REGISTRATION)
            await until(lambda: writer.waiting == 2)
            client.end()
        await client.close()
        assert front.state() == before


async def test_a_request_that_may_not_be_made_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        front.shares.lookups.take(Sharer("192.0.2.1"), front.shares.lookups.most_of_caller)
        other = SocketlessClient(front, "192.0.2.1")
        other.receive(LIST)
        assert other.sent_count == 1
        assert len(await client.send([LIST])) == 1
        front.shares.lookups.give_back(Sharer("192.0.2.1"), front.shares.lookups.most_of_caller)
        await other.close()


async def test_lists_of_all_connections_are_made_one_at_a_time_with_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, clock, begun = HeldWork(), asyncio.get_running_loop().time, list[float]()

    def names(_after: str, _most: int) -> list[str]:
        begun.append(clock())
        held()
        return []

    monkeypatch.setitem(TOPIC_LISTS, RequestCode.GET_ALL_TOPIC_LIST, lambda _lists, _request: names)
    async with connected(tmp_path) as (front, client):
        other = SocketlessClient(front, "192.0.2.1")
        client.receive(LIST)
        await held.begun()
        other.receive(frame(RequestCode.GET_BROKER_CLUSTER_INFO))
        await asyncio.sleep(0.05)
        assert other.sent_count == 0
        took = clock() - begun[0]
        held.let_go()
        await other.settle()
        assert clock() - begun[0] >= 2 * took, "none is made for as long as the first one took"
        await other.close()


async def test_topics_under_way_are_counted_for_an_address_on_both_protocols(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, _client):
        topics, other = front.shares.registered_topics, SocketlessClient(front, "192.0.2.1")
        with topics.holding(Sharer("192.0.2.1"), topics.most_of_caller):
            (refused,) = await other.send([REGISTRATION])
        (taken,) = await other.send([REGISTRATION])
        assert (b'"code":2,' in refused.header, b'"code":0,' in taken.header) == (True, True)
        await other.close()


async def test_bodies_that_nobody_reads_are_not_kept_and_unanswered_questions_not_asked(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        client.receive(frame(206, body=bytes(1_000_000)) * 3)
        assert [sent.is_released for sent in client.sent] == [True] * 3
        await until(lambda: client.sent_count == 3)
        assert await client.send([b"".join(frame(code, flag=2) for code in (206, 106, 319))]) != []
        assert [code for code, _ in front.told] == [206] * 3


async def test_a_table_that_is_lost_while_its_registration_waits_is_read_after_all(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        index, writer = front.fleet.state.index, front._writer
        await client.send([REGISTRATION])
        (mark,) = index.table_fingerprints.values()
        async with holding(writer, front.fleet.state):
            answered = asyncio.create_task(client.send([REGISTRATION]))
            await until(lambda: writer.waiting == 2)
            index.table_fingerprints.clear()
        (answer,) = await answered
        assert b'"code":0' in answer.header
        assert list(index.table_fingerprints.values()) == [mark]


async def asked(client: SocketlessClient, data: bytes) -> SentFrame:
    """A request, once it is answered."""
    client.receive(data)
    await client.settle()
    return client.sent[-1]


async def test_a_registration_that_brings_nothing_new_is_a_heartbeat_next_time(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        first, second = [await asked(client, REGISTRATION) for _ in range(2)]
        assert first.again is None, "it brought its topics"
        assert second.answers == first.answers
        again = second.again
        assert again is not None
        front.fleet.clock.advance(60)
        assert [again()] == first.answers
        (live,) = front.fleet.state.tables.broker_live_table.values()
        assert front.fleet.state.liveness.last_update_millis[live.key] == front.fleet.clock.wall_millis()
        order = KvConfigTable.of({ORDER_TOPIC_CONFIG: {"A": "broker-a:4"}})
        front.fleet.state.publish_kv_config(order, Cause("test"))
        assert again() is None, "the configuration in its answer is another one"
        again = (await asked(client, REGISTRATION)).again
        assert again is not None
        assert b'{"A":"broker-a:4"}' in (again() or b"")
        await asked(client, frame(103, broker_fields(), registration_body(["A", "B"])))
        assert again() is None, "its row is another one"


async def test_a_slave_is_told_of_a_new_master_though_it_brings_nothing_new(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, slave):
        data = frame(103, broker_fields() | {"brokerId": "1", "brokerAddr": "127.0.0.1:2"}, registration_body(["A"]))
        for _ in range(2):
            found = await asked(slave, data)
            assert b"masterAddr" not in found.answers[0]
        master = SocketlessClient(front)
        await master.send([REGISTRATION])
        assert found.again is None or found.again() is None
        assert b"masterAddr" in (await asked(slave, data)).answers[0]
        await master.close()


async def test_equal_heartbeats_are_repeated_while_the_brokers_row_is_the_same(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_front, client):
        body = registration_body(["A", "B"])
        await asked(client, frame(103, broker_fields(), body))
        version = json.dumps(json.loads(body)["topicConfigSerializeWrapper"]["dataVersion"]).encode()
        for data in (frame(904, broker_fields()), frame(322, broker_fields(), version)):
            found = await asked(client, data)
            assert found.again is not None
            assert [found.again()] == found.answers
        one_way = await asked(client, frame(904, broker_fields(), flag=2))
        assert (one_way.answers, one_way.again and one_way.again()) == ([b""], b"")
        other = await asked(client, frame(322, broker_fields(), b'{"counter":99}'))
        assert (b'"true"' in other.answers[0], other.again) == (True, None)
        await client.close()
        assert found.again is not None
        assert found.again() is None, "the broker has left"


async def test_lookups_name_what_their_answers_depend_on(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        await client.send([REGISTRATION])
        group = "\0DefaultCluster\0broker-a"
        for code, fields, kept in (
            (105, {"topic": "A"}, ["A", group]),
            (105, {"topic": "NOPE"}, ["NOPE"]),
            (106, {}, ["\0"]),
            (901, broker_fields(), [group]),
            (30_999, {}, ()),
            (206, {}, None),
        ):
            assert (await asked(client, frame(code, fields))).kept == kept, code
        front.fleet.register("10.0.0.9:1", name="broker-a", cluster="other", topics=["A"])
        found = await asked(client, frame(105, {"topic": "A"}))
        assert found.kept == ["A", group, "\0other\0broker-a"], "which group is shown depends on both"


async def test_a_header_that_cannot_be_read_ends_its_connection_with_no_answer(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, _client):
        broken = SentFrame(0, b"{}")
        front.connections.received(broken)
        assert (broken.answers, broken.is_closed, len(front.broken_by)) == ([b""], True, 1)
        front.connections.left(0, None)


async def test_a_connection_that_has_ended_does_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        async with connected(tmp_path) as (front, client):
            other = SocketlessClient(front)
            await client.send([LOOKUP, REGISTRATION])
            async with holding(front._writer, front.fleet.state):
                other.receive(REGISTRATION)
                await until(lambda: front._writer.waiting == 2)
                connections = [weakref.ref(each) for each in front.connections._connections.values()]
                assert len(connections) == 2
                for each in (client, other):
                    each.end()
                    each.sent.clear()
            await front.settled()
            assert [connection() for connection in connections] == [None, None]
    finally:
        gc.enable()


def permits(group: str) -> Permits:
    """Permits that let connections without a certificate register a group."""
    return Permits({ANONYMOUS: Principal("legacy", register=(BrokerPattern.parse(group),))})


async def test_a_registration_that_waits_is_refused_once_permits_do_not_admit_it(tmp_path: Path) -> None:
    in_force = [permits("DefaultCluster/broker-a")]
    authorizer = Authorizer(lambda: in_force[0], lambda _: ())
    async with connected(tmp_path) as (front, client):
        front.connections.calls = front.connections.calls._replace(gate=Gate(Grade, authorizer))
        async with holding(front._writer, front.fleet.state):
            answered = asyncio.create_task(client.send([REGISTRATION]))
            await until(lambda: front._writer.waiting == 2)
            in_force[0] = permits("DefaultCluster/broker-b")
            await authorizer.open_calls.check_again()
            (answer,) = await answered
        assert b"legacy may not register DefaultCluster/broker-a" in answer.header
