"""Calls that are answered without a task, and which get one after all. The test plays the server of ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from namesrv.config.limits import MAX_METADATA_BYTES
from namesrv.server.engines.envoy.messages import framed
from namesrv.server.engines.envoy.prompt import NOTHING_TO_RUN, PromptCalls, is_plain, task_factory

TE, TYPE = (b"te", b"trailers"), (b"content-type", b"application/grpc")
SCOPE = {"path": "/a.B/C", "headers": [TE, TYPE]}

OK = {b"grpc-status": b"0"}


async def echo(request: bytes, _context: Any) -> bytes:
    return request * 2


async def wait(_request: bytes, _context: Any) -> bytes:
    await asyncio.sleep(0)
    return b""


async def abort(_request: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    return b""


class Http:
    """One request. It comes when the test says so."""

    def __init__(self, handle: Any = echo) -> None:
        self.sent: list[Any] = []
        self.asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.in_task: list[Any] = []
        """What was received by a call that got a task."""
        self.has_task = asyncio.Event()
        self.calls = PromptCalls(self._answer_in_task)
        self.calls.begin(grpc.unary_unary_rpc_method_handler(handle), SCOPE, lambda: self.asked, self.sent.append)  # type: ignore[arg-type]

    async def _answer_in_task(self, _scope: Any, receive: Any, _send: Any) -> None:
        self.has_task.set()
        self.in_task.append(await receive())

    async def come(self, event: dict[str, Any]) -> None:
        """The request comes, or what there is of it."""
        self.asked.set_result(event)
        for _ in range(3):  # the callback, a task, and its end
            await asyncio.sleep(0)


def request(body: bytes, *, more_body: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more_body}


async def answered(event: dict[str, Any], handle: Any = echo) -> Http:
    http = Http(handle)
    await http.come(event)
    return http


def test_a_whole_request_is_answered_without_a_task() -> None:
    http = asyncio.run(answered(request(framed(b"hi"))))
    assert [event.get("body") for event in http.sent] == [None, framed(b"hihi"), None]
    assert dict(http.sent[-1]["headers"]) == OK
    assert http.in_task == []


def test_an_error_is_told_without_a_task_too() -> None:
    http = asyncio.run(answered(request(framed(b"")), abort))
    assert dict(http.sent[0]["headers"])[b"grpc-status"] == b"5"


def test_a_handler_that_waits_for_all_that_is_a_defect_of_ours() -> None:
    http = asyncio.run(answered(request(framed(b"")), wait))
    assert dict(http.sent[0]["headers"])[b"grpc-status"] == b"13"


@pytest.mark.parametrize(
    "event",
    [
        request(framed(b"hi"), more_body=True),
        request(framed(b"half")[:-1]),
        request(framed(b"one") + framed(b"two")),
        request(b"\x01" + framed(b"compressed")[1:]),
        request(b""),
    ],
)
def test_a_request_that_is_not_simply_whole_gets_a_task_which_receives_it_again(event: dict[str, Any]) -> None:
    http = asyncio.run(answered(event))
    assert http.in_task == [event]
    assert http.sent == []


def test_a_client_that_goes_before_its_request_has_come_gets_nothing() -> None:
    http = asyncio.run(answered({"type": "http.disconnect"}))
    assert (http.sent, http.in_task) == ([], [])


@pytest.mark.parametrize("comes_meanwhile", [False, True])
def test_a_request_that_does_not_come_soon_gets_a_task_and_one_answer(comes_meanwhile: bool) -> None:
    event = request(framed(b"hi"))

    async def scenario() -> Http:
        http = Http()
        if comes_meanwhile:
            http.asked.set_result(event)  # its callback is on its way
        http.calls.give_tasks()
        if not comes_meanwhile:
            http.asked.set_result(event)
        for _ in range(4):
            await asyncio.sleep(0)
        return http

    http = asyncio.run(scenario())
    assert http.in_task == [event]
    assert http.sent == []


def test_calls_whose_requests_do_not_come_get_tasks_by_themselves() -> None:
    async def scenario() -> Http:
        http = Http()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            watching = group.create_task(http.calls.run())
            await http.has_task.wait()
            watching.cancel()
        await http.come(request(framed(b"late")))
        return http

    assert asyncio.run(scenario()).in_task == [request(framed(b"late"))]


@pytest.mark.parametrize(
    ("headers", "plain"),
    [
        ((TE, TYPE), True),
        ((TE, TYPE, (b"grpc-timeout", b"1S"), (b"grpc-encoding", b"identity")), True),
        ((TE, TYPE, (b"grpc-timeout", b"1m")), False),
        ((TE, TYPE, (b"grpc-timeout", b"soon")), False),
        ((TE, TYPE, (b"grpc-encoding", b"gzip")), False),
        ((TE, TYPE, (b"x", bytes(MAX_METADATA_BYTES))), False),
        ((TE, (b"content-type", b"text/plain")), False),
        ((TE,), False),
        ((TYPE,), False),
    ],
)
def test_only_a_call_that_needs_no_word_about_its_headers_is_plain(
    headers: tuple[tuple[bytes, bytes], ...],
    plain: bool,
) -> None:
    assert is_plain(headers) is plain


def test_the_event_loop_makes_tasks_of_all_else() -> None:
    async def scenario() -> int:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(task_factory)
        stand_in: Any = loop.create_task(NOTHING_TO_RUN)
        stand_in.add_done_callback(lambda _: pytest.fail("there is nothing to run"))
        return len(await loop.create_task(echo(b"1", None), name="named"))

    assert asyncio.run(scenario()) == 2
