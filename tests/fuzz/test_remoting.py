"""Over RocketMQ's protocol, each request has one answer, or the connection ends; a refused one changes nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from namesrv.core.errors import Reason
from namesrv.error_codes import ResponseCode
from namesrv.remoting.wire.codes import RequestCode
from namesrv.remoting.wire.frames import BrokenFrame, Frame, FrameReader
from namesrv.remoting.wire.headers import Request, request_of
from tests.fuzz.mutations import EXAMPLES, samples
from tests.fuzz.remoting_frames import Spoiler, with_other_kinds
from tests.support.socketless_front import SocketlessClient, SocketlessFront

pytestmark = pytest.mark.fuzz

FRAMES = int(os.environ.get("FUZZ_FRAMES", "50"))
"""Frames of one example, which is one life of a name server: with the 20,000 examples of ``make fuzz``, a million."""
MOST_MEMORY_KILOBYTES = 400_000
"""More than a name server with such a fleet may take at any time, whatever lengths say."""
CHANGES = {
    *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.REGISTER_TOPIC),
    *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
    *(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV),
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def requests_in(data: bytes) -> tuple[list[Request], bool]:
    """The requests that are in bytes, and whether bytes follow that are none."""
    reader, found = FrameReader(), list[Request]()
    reader.feed(data)
    try:
        while (one := reader.next()) is not None:
            found.append(request_of(one))
    except BrokenFrame:
        return found, True
    return found, False


def check_answers(asked: list[Request], answers: list[Frame]) -> None:
    """Each request that waits for an answer has one, with its number, in its encoding, and with a known code."""
    wanted = Counter((one.opaque, one.encoding) for one in asked if not one.is_one_way and not one.is_answer)
    read = [request_of(answer) for answer in answers]
    assert Counter((one.opaque, one.encoding) for one in read) == wanted
    for one in read:
        assert one.is_answer
        assert one.code in set(ResponseCode)


class Life:
    """A name server, and a peer that sends it frames one after the other, over connections that end now and then."""

    def __init__(self, front: SocketlessFront) -> None:
        self._front = front
        self._client = SocketlessClient(front)
        self._begun = b""

    async def send(self, data: bytes, pieces: list[bytes]) -> None:
        """Sends bytes, and checks what comes of them."""
        front, before = self._front, self._front.state()
        asked, is_broken = requests_in(self._begun + data)
        answers = await self._client.send(pieces)
        told, broken_by = front.told.copy(), front.broken_by.copy()
        front.told.clear()
        front.broken_by.clear()
        problems = [problem for _, problem in told if problem is not None]
        assert not [problem for problem in problems if problem.reason == Reason.INTERNAL_DEFECT]
        assert all(code in set(RequestCode) for code, _ in told)
        if is_broken:
            # Requests that stood in line behind the last answer are dropped with the connection.
            assert len(broken_by) == 1
            assert "\n" not in broken_by[0]
            assert not self._client.is_open
        else:
            assert not broken_by
            check_answers(asked, answers)
            assert self._client.is_read_from
        # The brokers of a connection that ends leave.
        if len(asked) == 1 and not is_broken and (problems or asked[0].code not in CHANGES):
            assert front.state() == before, f"{told} has changed something"
        await self._go_on(data, asked, is_broken=is_broken)

    async def _go_on(self, data: bytes, asked: list[Request], *, is_broken: bool) -> None:
        """With the next frame: if this one is not whole, sometimes with its rest, and else over another connection."""
        reader = FrameReader()
        reader.feed(self._begun + data)
        while not is_broken and reader.next() is not None:
            pass
        self._begun = b"" if is_broken else (self._begun + data)[-reader.held :] if reader.held else b""
        assert self._client.held == len(self._begun) or is_broken
        if is_broken or len(self._begun) > 64 or (self._begun and not asked):
            await self._client.close()
            assert self._front.memory.shares.used == 0, "frames that never came whole leave no memory taken"
            self._client, self._begun = SocketlessClient(self._front), b""

    async def end(self) -> None:
        """Ends the connection."""
        await self._client.close()


async def live(seed: int, folder: Path) -> None:
    spoiler = Spoiler(samples("remoting_frames"), seed)
    front = SocketlessFront(Path(tempfile.mkdtemp(dir=folder)))
    try:
        life = Life(front)
        for data in spoiler.frames(FRAMES):
            await life.send(data, spoiler.pieces(data))
        await life.end()
    finally:
        await front.end()


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.timeout(7_200)
def test_no_frames_do_more_than_be_answered_or_end_their_connection(tmp_path: Path) -> None:
    before = peak_kilobytes()
    with asyncio.Runner() as runner:

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(seed=st.integers(0, 2**64 - 1))
        def run(seed: int) -> None:
            runner.run(live(seed, tmp_path))

        run()
    assert peak_kilobytes() - before < MOST_MEMORY_KILOBYTES


@pytest.mark.timeout(600)
async def test_a_value_of_another_kind_is_refused_or_passed_over_wherever_it_stands(tmp_path: Path) -> None:

    front = SocketlessFront(tmp_path)
    life, count = Life(front), 0
    for sample in samples("remoting_frames"):
        for data in with_other_kinds(sample):
            await life.send(data, [data])
            count += 1
    await life.end()
    await front.end()
    assert count > 5_000


async def test_frames_of_the_corpus_are_requests_that_are_answered_as_they_should(tmp_path: Path) -> None:

    front = SocketlessFront(tmp_path)
    client = SocketlessClient(front)
    for sample in samples("remoting_frames"):
        await client.send([sample])
        assert client.is_open
    await client.close()
    await front.end()
    told = Counter([(code, problem is None) for code, problem in front.told])
    assert {code for code, _ in told} == set(RequestCode)
    assert {code for code, is_sound in told if not is_sound} == {318}
