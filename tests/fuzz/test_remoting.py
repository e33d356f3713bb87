"""Over RocketMQ's protocol, each request has one answer, or the connection ends; a refused one changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, Self

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from namesrv.core.errors import Reason
from namesrv.error_codes import ResponseCode
from namesrv.remoting.wire import BrokenFrame, Request, RequestCode, request_of
from tests.fuzz.mutations import EXAMPLES, samples, spoiled
from tests.support.socketless_front import NoFrame, SentFrame, SocketlessClient, SocketlessFront, first_frame, frames_in
from tests.unit.namesrv.remoting.frames import binary_header, frame, json_header

_NUMBERS = ("0", "1", "-1", "4", "2147483647", "-2147483648", "4294967296", "9223372036854775807", "1.5", "1e999", "")
_TEXTS = (
    *("T5", "TStatic", "broker-a", "broker-b", "DefaultCluster", "Other", "127.0.0.1:21100", "127.0.0.1:1", "[::1]:2"),
    *("true", "z1", "a\0b", "a\nb", "\u202e", "größer €", "\ud800", "{}", "x" * 127, "x" * 128, "y" * 300, "%s", " "),
)
_JSON = (
    *("null", "true", "[]", "{}", '""', "{0:1}", "[{}]", '{"":{}}', '"\\ud800"', '"a\\u0000b"', "NaN", "Infinity", "-"),
    *("9" * 400, "[" * 40, '{"a":' * 40, "{0:{1:{2:", "0.5", "-0", "9223372036854775808", '"T5"', '"127.0.0.1:9"', "6"),
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+|true|false|null|[{}\[\]:,]')
_CODES = (
    *(100, 101, 102, 103, 103, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319),
    *(322, 327, 901, 904, 0, 1, -1, 905, 1001, 30999, 2**31 - 1),
)
_FIELDS = (
    *("topic", "brokerName", "brokerAddr", "clusterName", "brokerId", "haServerAddr", "bodyCrc32", "compressed"),
    *("enableActingMaster", "heartbeatTimeoutMillis", "__ZONE_NAME", "__ZONE_MODE", "acceptStandardJsonOnly"),
    *("cluster", "namespace", "key", "value", "ReqT", ""),
)
_MOST_PACKED = 1_000_000
"""A packed body that is larger is left as it is: unpacking bombs has a test of its own."""


class Asked(NamedTuple):
    """A request, in its parts."""

    code: int
    fields: dict[str, str]
    body: bytes
    opaque: int = 7
    flag: int = 0
    version: int = 513
    is_binary: bool = False

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The request that a frame is."""
        (found,) = frames_in(data)
        read = request_of(found)
        return cls(
            read.code, dict(read.fields), read.body, read.opaque, read.flag, read.version, is_binary=read.encoding == 1
        )

    def with_body(self, body: bytes) -> Asked:
        """The request with another body, and its checksum if it has one: else the body would not be read."""
        crc32 = {"bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)} if "bodyCrc32" in self.fields else {}
        return self._replace(fields=self.fields | crc32, body=body)

    def frame(self) -> bytes:
        """The frame of it."""
        return frame(self.header(), self.body, self.is_binary)

    def header(self) -> bytes:
        """Its header, if it can have one: the binary form cannot have some codes and some texts."""
        if self.is_binary:
            with contextlib.suppress(ValueError, struct.error):
                return binary_header(self.code, self.fields, self.opaque, self.flag)
        return json_header(self.code, self.fields, self.opaque, flag=self.flag, version=self.version)


OTHER_KINDS = (b"[{}]", b'{"a":{}}', b"5", b'"x"', b"null")
"""A value of each kind of JSON."""


def with_other_kinds(sample: bytes) -> Iterator[bytes]:
    """A frame again and again, each time with one value of its body of another kind: none is left to luck."""
    asked = Asked.of(sample)
    for begin, end in _values(asked.body):
        for other in OTHER_KINDS:
            body = asked.body[:begin] + other + asked.body[end:]
            yield asked.with_body(body).frame()


def _values(body: bytes) -> Iterator[tuple[int, int]]:
    """Where values and keys begin and end in JSON; nothing in a packed body."""
    opened: list[int] = []
    for token in _TOKEN.finditer(body if body[:1] in b"{[" else b""):
        if token[0] in b"{[":
            opened.append(token.start())
        elif token[0] in b"}]":
            yield opened.pop(), token.end()
        elif token[0] not in b":,":
            yield token.span()


class Spoiler:
    """Makes frames of samples, sound ones among them. The same seed makes the same ones."""

    def __init__(self, samples: Sequence[bytes], seed: int) -> None:
        self._samples = [Asked.of(sample) for sample in samples]
        self._random = Random(seed)

    def frame(self) -> bytes:
        """Makes one."""
        pick = self._random
        asked = pick.choice(self._samples)
        if pick.random() < 0.2:
            asked = asked._replace(opaque=pick.choice((0, -1, -(2**31), 2**31 - 1, pick.getrandbits(30))))
        match pick.choice(("sound", "frame", "header", "numbers", "fields", "body", "body")):
            case "sound":
                pass
            case "frame":
                return self._spoiled(asked.frame())
            case "header":
                return frame(self._spoiled(asked.header()), asked.body, asked.is_binary)
            case "numbers":
                asked = asked._replace(
                    code=pick.choice(_CODES),
                    flag=pick.choice((0, 0, 0, 1, 2, 3, -1, 2**31 - 1)),
                    version=pick.choice((0, -1, 36, 37, 399, 401, 407, 412, 413, 475, 476, 513, 2**31 - 1)),
                    is_binary=pick.random() < 0.3,
                )
            case "fields":
                fields = dict(asked.fields)
                for _ in range(pick.randrange(1, 4)):
                    name = pick.choice((*fields, *_FIELDS))
                    fields[name] = pick.choice(_NUMBERS if pick.random() < 0.4 else _TEXTS)
                    if pick.random() < 0.2:
                        del fields[name]
                asked = asked._replace(fields=fields)
            case "body":
                body = self._other_body(asked.body)
                asked = asked.with_body(body) if pick.random() < 0.95 else asked._replace(body=body)
        return asked.frame()

    def _other_body(self, body: bytes) -> bytes:
        """A body, packed or not, that is spoiled, or whose JSON has some other values, keys or signs."""
        pick = self._random
        if body[:1] == b"\x78" and pick.random() < 0.8:
            unpacking = zlib.decompressobj()
            inner = unpacking.decompress(body, _MOST_PACKED)
            return zlib.compress(self._spoiled(inner), 1) if unpacking.eof else body
        tokens = list(_TOKEN.finditer(body))
        if not tokens or pick.random() < 0.3:
            return self._spoiled(body)
        for _ in range(pick.randrange(1, 4)):
            token = pick.choice(tokens)
            other = pick.choice((*_JSON, json.dumps(pick.choice(_TEXTS)))).encode()
            body = body[: token.start()] + other + body[token.end() :]
            tokens = [before for before in tokens if before.end() <= token.start()]
            if not tokens:
                break
        return body

    def _spoiled(self, data: bytes) -> bytes:
        for _ in range(self._random.randrange(1, 4)):
            data = spoiled(data, [data], self._random.choice)
        return data


pytestmark = pytest.mark.fuzz

FRAMES = 50
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
    found = list[Request]()
    try:
        while (one := first_frame(data)) is not None:
            frame, data = one
            found.append(request_of(frame))
    except (BrokenFrame, NoFrame):
        return found, True
    return found, False


def check_answers(asked: list[Request], answers: list[SentFrame]) -> None:
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

    async def send(self, data: bytes) -> None:
        """Sends bytes, and checks what comes of them."""
        front, before = self._front, self._front.state()
        asked, is_broken = requests_in(data)
        answers = await self._client.send([data])
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
        # The brokers of a connection that ends leave.
        if len(asked) == 1 and not is_broken and (problems or asked[0].code not in CHANGES):
            assert front.state() == before, f"{told} has changed something"
        if is_broken:
            await self._client.close()
            self._client = SocketlessClient(self._front)

    async def end(self) -> None:
        """Ends the connection."""
        await self._client.close()


async def live(seed: int, folder: Path) -> None:
    spoiler = Spoiler(samples("remoting_frames"), seed)
    front = SocketlessFront(Path(tempfile.mkdtemp(dir=folder)))
    try:
        life = Life(front)
        for _ in range(FRAMES):
            await life.send(spoiler.frame())
        await life.end()
    finally:
        await front.end()


@pytest.mark.timeout(7_200)
def test_no_frames_do_more_than_be_answered_or_end_their_connection(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with asyncio.Runner() as runner:

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(seed=st.integers(0, 2**64 - 1))
        def run(seed: int) -> None:
            runner.run(live(seed, tmp_path))

        run()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY_KILOBYTES


@pytest.mark.timeout(600)
async def test_a_value_of_another_kind_is_refused_or_passed_over_anywhere(tmp_path: Path) -> None:
    front = SocketlessFront(tmp_path)
    life, count = Life(front), 0
    for sample in samples("remoting_frames"):
        for data in with_other_kinds(sample):
            await life.send(data)
            count += 1
    await life.end()
    await front.end()
    assert count > 5_000


async def test_frames_of_the_corpus_are_requests_that_are_answered(tmp_path: Path) -> None:
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
