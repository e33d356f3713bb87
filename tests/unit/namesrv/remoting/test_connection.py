"""The bounds on one connection: on silence, on slowness, on memory and on time of the event loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from groundwork.shares import Sharer
from namesrv.remoting.connection import READ_BYTES, WRITE_BYTES
from namesrv.remoting.limits import (
    FRAME_SECONDS,
    FRAME_SILENCE_SECONDS,
    FREE_BYTES,
    IDLE_SECONDS,
    MAX_UNSENT_BYTES,
    MAX_WAITING_REQUESTS,
    MEMORY_SECONDS,
)
from namesrv.remoting.scheduling import SLICE_NANOS, STEP_NANOS
from tests.support.programs.rocketmq import broker_fields, frame, registration_body
from tests.support.socketless_front import SocketlessClient, SocketlessFront
from tests.support.state_changes import Held

SLOW_READER_SECONDS = 10.0
LOOKUP = frame(105, {"topic": "NOPE"})
LIST = frame(206)
REGISTRATION = frame(103, broker_fields(), registration_body(["A"]))


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[SocketlessFront, SocketlessClient]]:
    """A connection. It must leave nothing."""
    front = SocketlessFront(folder)
    client = SocketlessClient(front)
    yield front, client
    await client.close()
    assert front.memory.shares.used == 0
    await front.end()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


def overdue(front: SocketlessFront, client: SocketlessClient, seconds: float) -> str | None:
    """Whether the connection is overdue after so many seconds more."""
    front.fleet.clock.advance(seconds)
    return client.connection.overdue(front.fleet.clock(), IDLE_SECONDS, SLOW_READER_SECONDS)


async def test_a_silent_connection_is_overdue_and_one_that_asks_is_not(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        assert overdue(front, client, IDLE_SECONDS) is None
        await client.send([LOOKUP])
        assert overdue(front, client, IDLE_SECONDS) is None
        assert overdue(front, client, 1) == "it was silent"


async def test_a_frame_that_comes_too_slowly_is_overdue_however_often_a_byte_of_it_comes(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        for byte in LOOKUP[: int(FRAME_SECONDS)]:
            assert overdue(front, client, 1) is None
            await client.send([bytes([byte])])
        problem = overdue(front, client, 1) or overdue(front, client, 1)
        assert problem is not None
        assert problem.startswith("a frame did not arrive whole")


async def test_a_large_frame_that_comes_in_time_is_answered_and_the_time_begins_anew(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        large = frame(103, broker_fields(), registration_body(["A"]) + b" " * 100_000)
        for _ in range(3):
            await client.send([large[:70_000]])
            assert overdue(front, client, FRAME_SILENCE_SECONDS) is None
            (answer,) = await client.send([large[70_000:]])
            assert b'"code":0' in answer.header
            assert overdue(front, client, FRAME_SECONDS + 1) is None
        await client.send([large[:70_000]])
        assert overdue(front, client, FRAME_SILENCE_SECONDS + 1) == "a frame stopped for 10 s"


async def test_who_reads_nothing_is_asked_nothing_more_and_is_overdue(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        client.connection.pause_writing()
        assert not client.is_read_from
        assert await client.send([LOOKUP]) == []
        assert overdue(front, client, SLOW_READER_SECONDS) is None
        assert overdue(front, client, 1) == "it takes no answers"
        client.connection.resume_writing()
        assert len(await client.send([b""])) == 1
        assert client.is_read_from


WIDE_GROUPS, MANY_TOPICS = 200, 2_000
NO_READER: dict[str, bytes] = {"lists": LIST, "lookups": frame(105, {"topic": "wide"})}


@pytest.mark.parametrize("asked", NO_READER.values(), ids=NO_READER)
async def test_a_peer_that_reads_nothing_is_sent_its_bound_and_the_rest_once_it_reads(
    tmp_path: Path, asked: bytes
) -> None:
    async with connected(tmp_path) as (front, client):
        for number in range(WIDE_GROUPS):
            front.fleet.register(f"10.0.0.{number}:10911", name=f"broker-{number}", topics=["wide"])
        front.fleet.register(topics=[f"{number:0127}" for number in range(MANY_TOPICS)])
        (answer,) = await client.send([asked])
        one, count = len(answer.header) + len(answer.body), 3 * MAX_WAITING_REQUESTS
        client.stop_reading()
        client.receive(count * asked)
        await client.settle()
        assert MAX_UNSENT_BYTES < client.unsent < MAX_UNSENT_BYTES + WRITE_BYTES + 2 * one
        assert front.owing == {client.connection}
        assert not client.is_read_from
        client.read_again()
        assert len(await client.send([])) == count
        assert client.is_read_from


async def test_requests_that_wait_for_their_turn_are_bounded_and_all_answered_in_their_order(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as (_front, client):
        asked = [frame(206, opaque=number) for number in range(3 * MAX_WAITING_REQUESTS)]
        client.receive(b"".join(asked))
        assert len(client.connection._waiting) == MAX_WAITING_REQUESTS
        assert not client.is_read_from
        answers = await client.send([])
        assert [b'"opaque":%d,' % number in answer.header for number, answer in enumerate(answers)] == [True] * len(
            asked
        )


async def test_a_flood_of_one_connection_gives_others_their_turn(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        front.frame_nanos = SLICE_NANOS // 10
        client.receive(LOOKUP * 100)
        assert client.sent_count < 15
        assert not client.is_read_from
        others = [SocketlessClient(front, "192.0.2.1") for _ in range(3)]
        for other in others:
            other.receive(LOOKUP)
        await until(lambda: all(other.sent_count == 1 for other in others))
        assert client.sent_count < 50
        assert len(await client.send([])) == 100
        for other in others:
            await other.close()


async def test_brokers_that_register_at_once_do_so_a_few_in_a_turn_and_in_their_order(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, _client):
        begun = SLICE_NANOS // STEP_NANOS
        brokers = [SocketlessClient(front) for _ in range(5 * begun + 1)]
        for number, broker in enumerate(brokers):
            names = {"brokerName": f"broker-{number:03}", "brokerAddr": f"127.0.0.1:{20_000 + number}"}
            asked = frame(103, broker_fields() | names, registration_body(["A"]))
            broker.receive(asked)
        registered = [0]
        for _ in range(10 * len(brokers)):
            await asyncio.sleep(0)
            registered.append(len(front.told))
        assert registered[-1] == len(brokers)
        assert max(after - before for before, after in itertools.pairwise(registered)) <= begun
        lives = sorted(front.fleet.state.tables.broker_live_table.values(), key=lambda live: live.generation)
        assert [live.broker.broker_name for live in lives] == [f"broker-{number:03}" for number in range(len(brokers))]
        for broker in brokers:
            await broker.close()


async def test_a_registration_whose_connection_ends_before_its_turn_is_not_half_done(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        before, writer = front.state(), front._writer

        held = Held(front.fleet.state)
        holding = asyncio.create_task(writer.apply_own(held))
        await held.begun()
        client.receive(LIST + REGISTRATION)
        await until(lambda: writer._waiting == 2)
        client.connection.close()
        await until(lambda: client.connection not in front.open_ones)
        held.let_go()
        await holding
        await client.close()
        assert front.state() == before


LARGE = frame(103, broker_fields(), registration_body(["A"]) + b" " * 10_000_000)


async def test_memory_is_taken_for_bytes_that_arrive_and_not_for_declared_ones(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        for size in (100, 100_000, 1_000_000):
            await client.send([LARGE[size // 10 : size] if size > 100 else LARGE[:size]])
            held = client.held
            assert held - FREE_BYTES <= front.memory.shares.used <= held - FREE_BYTES + READ_BYTES


async def test_an_address_without_memory_waits_and_no_other_address_does(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        most = front.memory.shares.most_of_caller
        holders = [SocketlessClient(front, "192.0.2.1") for _ in range(most // 9_000_000 + 2)]
        for holder in holders:
            await holder.send([LARGE[:9_000_000]])
        waiting = [holder for holder in holders if not holder.is_read_from]
        assert waiting
        assert front.memory.shares.used <= most
        (answer,) = await client.send([LARGE])
        assert b'"code":0' in answer.header
        assert overdue(front, waiting[0], MEMORY_SECONDS) is None
        assert overdue(front, waiting[0], 1) == "there was no memory for its requests"
        for holder in holders:
            await holder.close()


async def test_frames_that_have_come_in_part_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, _client):
        clients = [SocketlessClient(front, "192.0.2.1") for _ in range(12)]
        for client in clients:
            client.receive(LARGE[:8_000_000])
        for client in clients:
            client.receive(LARGE[8_000_000:])
        await until(lambda: all(client.sent_count == 1 for client in clients))
        for client in clients:
            await client.close()


async def test_a_request_that_may_not_be_made_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        front.shares.lookups.take(Sharer("192.0.2.1"), front.shares.lookups.most_of_caller)
        other = SocketlessClient(front, "192.0.2.1")
        other.receive(LIST)
        assert other.sent_count == 1
        assert len(await client.send([LIST])) == 1
        front.shares.lookups.give_back(Sharer("192.0.2.1"), front.shares.lookups.most_of_caller)
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
        await until(lambda: client.sent_count == 3)
        assert not front.memory.shares.used
        assert await client.send([b"".join(frame(code, flag=2) for code in (206, 106, 319))]) != []
        assert [code for code, _ in front.told] == [206] * 3


async def test_a_table_that_is_lost_while_its_registration_waits_is_read_after_all(tmp_path: Path) -> None:
    async with connected(tmp_path) as (front, client):
        tables, writer = front.fleet.state.tables, front._writer

        await client.send([REGISTRATION])
        (mark,) = tables.table_fingerprints.values()
        held = Held(front.fleet.state)
        losing = asyncio.create_task(writer.apply_own(held))
        await held.begun()
        answered = asyncio.create_task(client.send([REGISTRATION]))
        await until(lambda: writer._waiting == 2)
        tables.table_fingerprints.clear()
        held.let_go()
        await losing
        (answer,) = await answered
        assert b'"code":0' in answer.header
        assert list(tables.table_fingerprints.values()) == [mark]


def test_a_connection_that_has_ended_does_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    async def run() -> None:
        front = SocketlessFront(tmp_path)
        client, other = SocketlessClient(front), SocketlessClient(front)
        await client.send([LOOKUP, REGISTRATION, b"GET / HTTP/1.1"])
        await client.close()
        held = Held(front.fleet.state)
        holding = asyncio.create_task(front._writer.apply_own(held))
        await held.begun()
        other.receive(REGISTRATION)
        await until(lambda: front._writer._waiting == 2)
        other.connection.abort()
        held.let_go()
        await holding
        await other.close()
        connections = [weakref.ref(each.connection) for each in (client, other)]
        assert None not in [connection() for connection in connections]
        del client, other
        await asyncio.sleep(0)
        assert [connection() for connection in connections] == [None, None]
        await front.end()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
