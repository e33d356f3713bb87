"""The connections of RocketMQ's protocol: requests in their order, and an answer to each.

The engine has the sockets. It limits what peers send, cuts it into frames, and gives again what was answered before.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from uuid import uuid4

import structlog

from namesrv.app.event_log import LINE_BURST, LINE_SECONDS, ROUTINE, RegistrationLog
from namesrv.core.errors import Reason, Refused, internal_defect
from namesrv.core.model import Doubt
from namesrv.engines.api import FrameCall, Requests
from namesrv.error_codes import ERROR_CODES, ResponseCode
from namesrv.remoting.caller import Caller
from namesrv.remoting.calls import MAX_REMARK_CHARACTERS, Calls, InTurn
from namesrv.remoting.wire import GO_AWAY, PLEASE_GO_AWAY, BrokenFrame, Request, RequestCode, answer, request_of
from namesrv.settings import ROCKETMQ_DENIED
from namesrv_common.process.logs import RateLimitedLog

OnAnswer = Callable[[int, float, bool], object]
"""Is told the code of an answered request, how many seconds it took, and whether it was refused."""

_NAMES: dict[int, str] = {code: code.name for code in RequestCode}
_log = structlog.get_logger(__name__)


class Connections:
    """The brokers, clients and tools of RocketMQ that are connected."""

    requests: Sequence[Requests] = (
        Requests(RequestCode.GET_ROUTEINFO_BY_TOPIC, may_be_kept=True),
        Requests(RequestCode.GET_BROKER_CLUSTER_INFO, may_be_kept=True),
        Requests(RequestCode.GET_BROKER_MEMBER_GROUP, may_be_kept=True),
        Requests(RequestCode.REGISTER_BROKER, may_be_known=True),
        Requests(RequestCode.QUERY_DATA_VERSION, may_be_known=True),
        Requests(RequestCode.BROKER_HEARTBEAT, may_be_known=True),
        Requests(None, may_be_kept=True),
    )
    """What the engine answers by itself, or knows by numbers. The last stands for all other codes."""
    go_away = GO_AWAY

    def __init__(self, calls: Calls, on_answer: OnAnswer, clock: Callable[[], float] = time.monotonic) -> None:
        self.calls = calls
        """What answers requests."""
        self.log = RegistrationLog()
        self.clock = clock
        self._on_answer = on_answer
        self._connections: dict[int, Connection] = {}
        self._ends, self._refusals = (
            RateLimitedLog(event, LINE_SECONDS, clock, burst=LINE_BURST)
            for event in ("remoting_connection_ended", "request_refused")
        )

    def received(self, call: FrameCall) -> None:
        """A request arrived. It is answered once, unless its connection ends before."""
        connection = self._connections.get(call.connection)
        if connection is None:
            connection = self._connections[call.connection] = Connection(self, call)
        connection.received(call)

    def left(self, connection_id: int, doubt: Doubt | None) -> None:
        """A connection has ended. Then a broker that registered over it leaves, unless there is doubt about the end."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            connection.left(doubt)

    def answered(self, code: int, began: float, problem: Refused | None) -> None:
        self._on_answer(code, self.clock() - began, problem is not None)

    def refused(self, code: int, peer: str, problem: str, grade: str | None = None) -> None:
        """Logs that a request was refused. A flood of them makes few lines."""
        name = _NAMES.get(code, "UNKNOWN")
        fields = {} if grade is None else {"grade": grade, "remedy": f"add {grade} to remoting_allow"}
        self._refusals.log(code=code, name=name, peer=peer, problem=problem, **fields)

    def broken(self, peer: str, problem: str) -> None:
        """Logs that a connection was ended for what its peer sent. A flood of them makes few lines."""
        self._ends.log(peer=peer, problem=problem)


class Connection:
    """A broker, a client or a tool of RocketMQ."""

    def __init__(self, home: Connections, first: FrameCall) -> None:
        self._home = home
        self._peer = first.peer
        self._caller = Caller(first.peer, first.names, first.close)
        self._waiting: deque[tuple[Request, InTurn, float]] = deque()
        """Requests that wait for those before them, each with its call and its time of arrival."""
        self._worker: asyncio.Task[None] | None = None

    def left(self, doubt: Doubt | None) -> None:
        self._caller.left(doubt)
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None  # which has this connection in the traceback of its end
        for _, in_turn, _ in self._waiting:
            in_turn.shares.give_back(self._caller.sharer)
        self._waiting.clear()

    def received(self, call: FrameCall) -> None:
        """Answers a request, or has it wait for those before it."""
        began, calls = self._home.clock(), self._home.calls
        try:
            request = request_of(call)
        except BrokenFrame as error:
            self._home.broken(self._peer, str(error))
            call.answer(b"")
            call.close()
            return
        told, at_once, in_turn = None, calls.at_once.get(request.code), calls.in_turn.get(request.code)
        if request.is_answer or (in_turn is not None and request.is_one_way and in_turn.is_question):
            call.answer(b"")
            return
        try:
            if at_once is not None:
                calls.gate.check(self._caller, at_once.grade, at_once.brokers(request))
                told = at_once.call(request, self._caller)
            if told is not None:
                self._home.answered(request.code, began, None)
            elif in_turn is not None:
                calls.gate.check(self._caller, in_turn.grade, in_turn.brokers(request))
                in_turn.shares.take(self._caller.sharer)
                self._wait(request, in_turn, began)
                return
            else:
                remark = f" request type {request.code} not supported"
                self._home.refused(request.code, self._peer, remark.strip())
                call.may_keep((), is_admitted=False)
                told = answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next request must be answered
            told = self._failed(request, error, began)
        request.tell(told)

    def _wait(self, request: Request, in_turn: InTurn, began: float) -> None:
        """Has an admitted request wait for those before it."""
        if request.body and not in_turn.reads_body:
            request = request._replace(body=b"")
            request.call.release()
        self._waiting.append((request, in_turn, began))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._answer_waiting())

    async def _answer_waiting(self) -> None:
        """Answers requests in their order of arrival, as long as there are some."""
        gate = self._home.calls.gate
        while self._waiting:
            request, in_turn, began = self._waiting[0]
            try:
                with gate.while_allowed(self._caller, in_turn.grade, in_turn.brokers(request)):
                    told = await in_turn.call(request, self._caller)
                self._home.answered(request.code, began, None)
            except Exception as error:  # noqa: BLE001 - as above
                told = self._failed(request, error, began)
            if not self._waiting:  # the connection has ended
                return
            self._waiting.popleft()
            in_turn.shares.give_back(self._caller.sharer)
            request.tell(told)
        self._worker = None

    def _failed(self, request: Request, error: Exception, began: float) -> bytes:
        """The answer to a request that was refused, or whose call has a defect."""
        if not isinstance(error, Refused):
            error_id = uuid4().hex[:12]  # for the caller to quote
            _log.error("internal_defect", error_id=error_id, call=request.code, peer=self._peer, exc_info=error)
            error = internal_defect(error_id)
        elif request.code == RequestCode.REGISTER_BROKER:
            self._home.log.refused(*request.broker_names, self._caller.name, error)
        elif error.reason not in ROUTINE:
            self._home.refused(request.code, self._peer, error.text, error.metadata.get("grade"))
        self._home.answered(request.code, began, error)
        return refusal(request, error)


def refusal(request: Request, error: Refused) -> bytes:
    """The answer to a request that was refused."""
    if error.reason == Reason.SHUTTING_DOWN and request.version > GO_AWAY.later_than:
        return answer(request, ResponseCode.GO_AWAY, remark=PLEASE_GO_AWAY)
    return answer(request, ERROR_CODES[Reason(error.reason)].rocketmq, remark=_remark(error)[:MAX_REMARK_CHARACTERS])


def _remark(error: Refused) -> str:
    """The text about an error: RocketMQ's words, where tools or people look for them, and a remedy."""
    if error.reason == Reason.KV_NOT_FOUND:
        namespace, key = error.metadata["namespace"], error.metadata.get("key")
        return f"No config item, Namespace: {namespace}" + ("" if key is None else f" Key: {key}")
    if error.reason == Reason.CONFIG_KEY_DENIED and error.metadata["key"] in ROCKETMQ_DENIED:
        return "Can not update config in black list."
    words = ERROR_CODES[Reason(error.reason)].words
    return f"{words}: {error.text}" if words else error.text
