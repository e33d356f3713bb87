"""The bounds on one connection: on silence, on slowness, on what waits, on a turn of the event loop."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from namesrv.remoting.connection import FRAMES_IN_A_TURN, WRITE_BYTES
from namesrv.remoting.limits import FRAME_SECONDS, IDLE_SECONDS, MAX_UNSENT_BYTES, MAX_WAITING_REQUESTS
from tests.support.programs.rocketmq import broker_fields, frame, registration_body
from tests.support.socketless_front import SocketlessClient, SocketlessFront
from tests.support.state_changes import Held

SLOW_READER_SECONDS = 10.0
LOOKUP = frame(105, {"topic": "NOPE"})
LIST = frame(206)
REGISTRATION = frame(103, broker_fields(), registration_body(["A"]))

Use = Callable[[SocketlessFront, SocketlessClient], Awaitable[None]]


@pytest.fixture
def use(tmp_path: Path) -> Callable[[Use], None]:
    """Runs a test with a connection, and checks that nothing is left of it."""

    async def run(test: Use) -> None:
        front = SocketlessFront(tmp_path)
        client = SocketlessClient(front)
        await test(front, client)
        await client.close()
        assert front.memory._taken == 0
        await front.end()

    return lambda test: asyncio.run(run(test))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)


def overdue(front: SocketlessFront, client: SocketlessClient, seconds: float) -> str | None:
    """Whether the connection is overdue after so many seconds more."""
    front.fleet.clock.advance(seconds)
    return client.connection.overdue(front.fleet.clock(), IDLE_SECONDS, SLOW_READER_SECONDS)


def test_a_silent_connection_is_overdue_and_one_that_asks_is_not(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        assert overdue(front, client, IDLE_SECONDS) is None
        await client.send([LOOKUP])
        assert overdue(front, client, IDLE_SECONDS) is None
        assert overdue(front, client, 1) == "it was silent"

    use(test)


def test_a_frame_that_comes_too_slowly_is_overdue_however_often_a_byte_of_it_comes(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        for byte in LOOKUP[: int(FRAME_SECONDS)]:
            assert overdue(front, client, 1) is None
            await client.send([bytes([byte])])
        problem = overdue(front, client, 1) or overdue(front, client, 1)
        assert problem is not None
        assert problem.startswith("a frame did not arrive whole")

    use(test)


def test_a_large_frame_that_comes_in_time_is_answered_and_the_time_begins_anew(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        large = frame(103, broker_fields(), registration_body(["A"]) + b" " * 100_000)
        for _ in range(3):
            await client.send([large[:70_000]])
            assert overdue(front, client, FRAME_SECONDS - 1) is None
            (answer,) = await client.send([large[70_000:]])
            assert b'"code":0' in answer.header
            assert overdue(front, client, FRAME_SECONDS + 1) is None

    use(test)


def test_who_reads_nothing_is_asked_nothing_more_and_is_overdue(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        client.connection.pause_writing()
        assert not client.is_read_from
        assert await client.send([LOOKUP]) == []
        assert overdue(front, client, SLOW_READER_SECONDS) is None
        assert overdue(front, client, 1) == "it takes no answers"
        client.connection.resume_writing()
        assert len(await client.send([b""])) == 1
        assert client.is_read_from

    use(test)


WIDE_GROUPS, MANY_TOPICS = 200, 2_000
NO_READER: dict[str, bytes] = {"lists": LIST, "lookups": frame(105, {"topic": "wide"})}


@pytest.mark.parametrize("asked", NO_READER.values(), ids=NO_READER)
def test_a_peer_that_reads_nothing_is_sent_its_bound_and_the_rest_once_it_reads(
    use: Callable[[Use], None], asked: bytes
) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        for number in range(WIDE_GROUPS):
            front.fleet.register(f"10.0.0.{number}:10911", name=f"broker-{number}", topics=["wide"])
        front.fleet.register(topics=[f"{number:0127}" for number in range(MANY_TOPICS)])
        (answer,) = await client.send([asked])
        one, count = len(answer.header) + len(answer.body), 3 * MAX_WAITING_REQUESTS
        client.stop_reading()
        client.connection.data_received(count * asked)
        await client.settle()
        assert MAX_UNSENT_BYTES < client.unsent < MAX_UNSENT_BYTES + WRITE_BYTES + 2 * one
        assert front.owing == {client.connection}
        assert not client.is_read_from
        client.read_again()
        assert len(await client.send([])) == count
        assert client.is_read_from

    use(test)


def test_requests_that_wait_for_their_turn_are_bounded_and_all_answered_in_their_order(
    use: Callable[[Use], None],
) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        asked = [frame(206, opaque=number) for number in range(3 * MAX_WAITING_REQUESTS)]
        client.connection.data_received(b"".join(asked))
        assert len(client.connection._waiting) == MAX_WAITING_REQUESTS
        assert not client.is_read_from
        answers = await client.send([])
        assert [b'"opaque":%d,' % number in answer.header for number, answer in enumerate(answers)] == [True] * len(
            asked
        )

    use(test)


def test_a_flood_of_one_connection_gives_others_their_turn(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        client.connection.data_received(LOOKUP * (2 * FRAMES_IN_A_TURN + 1))
        assert client.sent_count == FRAMES_IN_A_TURN
        other = SocketlessClient(front)
        assert len(await other.send([LOOKUP])) == 1
        await other.close()
        assert len(await client.send([])) == 2 * FRAMES_IN_A_TURN + 1

    use(test)


def test_brokers_that_register_at_once_do_so_one_in_a_turn_and_in_their_order(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        brokers = [SocketlessClient(front) for _ in range(21)]
        for number, broker in enumerate(brokers):
            names = {"brokerName": f"broker-{number:03}", "brokerAddr": f"127.0.0.1:{20_000 + number}"}
            asked = frame(103, broker_fields() | names, registration_body(["A"]))
            broker.connection.data_received(asked)
        registered = [0]
        for _ in range(10 * len(brokers)):
            await asyncio.sleep(0)
            registered.append(len(front.told))
        assert registered[-1] == len(brokers)
        assert max(after - before for before, after in itertools.pairwise(registered)) == 1
        lives = sorted(front.fleet.state.tables.broker_live_table.values(), key=lambda live: live.generation)
        assert [live.broker.broker_name for live in lives] == [f"broker-{number:03}" for number in range(len(brokers))]
        for broker in brokers:
            await broker.close()

    use(test)


def test_a_registration_whose_connection_ends_before_its_turn_is_not_half_done(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        before, writer = front.state(), front._writer

        held = Held(front.fleet.state)
        holding = asyncio.create_task(writer.apply_own(held))
        await held.begun()
        client.connection.data_received(LIST + REGISTRATION)
        await until(lambda: writer._waiting == 2)
        client.connection.close()
        await until(lambda: client.connection not in front.open_ones)
        held.let_go()
        await holding
        await client.close()
        assert front.state() == before

    use(test)


def test_a_large_frame_waits_for_memory_that_others_take_and_is_not_overdue_meanwhile(
    use: Callable[[Use], None],
) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
        large = frame(103, broker_fields(), registration_body(["A"]) + b" " * 10_000_000)
        holders = []
        while not front.memory._waiting:
            holders.append(SocketlessClient(front))
            await holders[-1].send([large[:100]])
        await client.send([large[:100]])
        assert not client.is_read_from
        assert overdue(front, client, FRAME_SECONDS + IDLE_SECONDS) is None
        for holder in holders:
            await holder.close()
        (answer,) = await client.send([large[100:]])
        assert b'"code":0' in answer.header

    use(test)


def test_a_table_that_is_lost_while_its_registration_waits_is_read_after_all(use: Callable[[Use], None]) -> None:
    async def test(front: SocketlessFront, client: SocketlessClient) -> None:
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

    use(test)


def test_a_connection_that_has_ended_does_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    async def run() -> None:
        front = SocketlessFront(tmp_path)
        client = SocketlessClient(front)
        await client.send([LOOKUP, REGISTRATION, b"GET / HTTP/1.1"])
        await client.close()
        connection = weakref.ref(client.connection)
        assert connection() is not None
        del client
        await asyncio.sleep(0)
        assert connection() is None
        await front.end()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
