"""Name servers and brokers of RocketMQ, asked over their own protocol. Nothing here writes."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import grpc
from namesrv_api.v1 import route_data_pb2

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError, RichError

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Largest answer that is read: a list of a million topics has 30 MB. Parsed, a hostile one takes 25 times as much."""

MAX_PROBLEM_CHARACTERS = 1_000
"""Most characters of a refusal that are shown."""

_PIECE_BYTES = 65_536
_CLUSTER_INFO, _ALL_TOPICS, _ROUTE, _KV_LIST, _SETTINGS = 106, 206, 105, 219, 319  # of name servers
_RUNTIME_INFO, _CONSUME_STATS = 28, 317  # of brokers
_NOT_FOUND = {_ROUTE: 17, _KV_LIST: 22}
"""The code of an answer that says that there is no such topic or namespace, by request code."""
_VERSION = 513
"""RocketMQ's number of 5.5.0: such a client is answered in standard JSON, but for the keys of lists of brokers."""
_PREFIX = struct.Struct(">II")
_HEADER_LENGTH_MASK = 0xFF_FFFF
_ODD_KEY = re.compile(
    r"""
    "(?:[^"\\]|\\.)*+(?:"|\Z)                                       # a text, as it is
    | ([{,]\s*) (?: (-?\d+) | (\{ (?:"(?:[^"\\]|\\.)*+"|[^{}"])*+ \}) ) (?=\s*:)  # a key: a number, or an object
    """,
    re.VERBOSE,
)
"""Keys that JSON does not allow, which fastjson writes without quotes: numbers, and the queues of consume stats."""


ReadT = TypeVar("ReadT")


class RocketmqError(CallError):
    """A program of RocketMQ answered with an error, or did not answer."""


class Load(NamedTuple):
    """Messages that a broker keeps for later, and messages that arrive."""

    delayed: int
    """Messages with a delay level that is not over."""
    timed: int
    """Messages of timers (RocketMQ 5)."""
    written_per_second: float | None
    """Messages written during the last ten seconds, system topics included. None until the broker has run that long."""


class RocketmqClient:
    """A connection to a name server or a broker. All calls raise CallError."""

    def __init__(self, endpoint: Endpoint, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> None:
        """Connects, with TLS if there is a context. Raises CallError.

        Args:
            timeout_seconds: Longest time to connect, to agree on TLS, and for each call with its whole answer.
        """
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._has_tls = tls is not None
        try:
            self._socket = socket.create_connection(endpoint, timeout=timeout_seconds)
        except OSError as error:
            raise self._failed(f"cannot be reached: {error.strerror or error}") from error
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=endpoint.host)
            except OSError as error:  # it is closed then
                may_be_plain = not isinstance(error, ssl.SSLCertVerificationError)
                hint = "; if it takes no TLS, leave out --rocketmq-tls-ca" if may_be_plain else ""
                raise self._failed(f"did not agree on TLS: {_of_tls(error)}{hint}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def groups(self) -> list[route_data_pb2.BrokerData]:
        """All broker groups that a name server shows."""
        return self._ask(_CLUSTER_INFO, lambda told: [*map(_group, told.get("brokerAddrTable", {}).values())])

    def topics(self) -> list[str]:
        """All topics of a name server."""
        return self._ask(_ALL_TOPICS, lambda told: [*map(str, told.get("topicList", []))])

    def queues(self, topic: str) -> list[route_data_pb2.QueueData]:
        """The queues of a topic on each group of its route; none if there is no route."""
        return self._ask(_ROUTE, _queues, topic=topic, acceptStandardJsonOnly="true")

    def kv(self, namespace: str) -> dict[str, str]:
        """The keys of a namespace of the KV configuration with their values; none if there is no such namespace."""
        return self._ask(_KV_LIST, lambda told: dict(told.get("table", {})), namespace=namespace)

    def settings(self) -> dict[str, str]:
        """All settings of a name server (mqadmin getNamesrvConfig)."""
        return self._ask(_SETTINGS, lambda told: dict(line.split("=", 1) for line in told.splitlines() if "=" in line))

    def lags(self, broker_name: str) -> dict[tuple[str, str], int]:
        """Messages that consumer groups have not consumed yet, by group and topic (mqadmin brokerConsumeStats).

        Args:
            broker_name: The group that it must belong to: another broker may have the address by now.
        """
        lags = self._ask(_CONSUME_STATS, _lags, isOrder="false")
        if others := {name for name, _, _ in lags} - {broker_name}:
            raise self._failed(f"is {', '.join(sorted(others))} and not {broker_name}")
        return {(group, topic): lag for (_, group, topic), lag in lags.items()}

    def load(self) -> Load:
        """What a broker keeps for later (mqadmin brokerStatus)."""
        return self._ask(_RUNTIME_INFO, lambda told: _load(told["table"]))

    def _ask(self, code: int, read: Callable[[Any], ReadT], **fields: str) -> ReadT:
        """Makes a call, and reads its answer; an empty object, if there is no such topic or namespace."""
        values = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": _VERSION}
        header = json.dumps(values).encode()
        try:
            self._socket.sendall(_PREFIX.pack(4 + len(header), len(header)) + header)
            answer, body = self._read()
            if answer.get("code") == 0:
                text = body.decode()
                return read(text if code == _SETTINGS else json.loads(_ODD_KEY.sub(_quoted, text)))
            if code in _NOT_FOUND and answer.get("code") == _NOT_FOUND[code]:
                return read({})
        except OSError as error:
            may_want_tls = isinstance(error, ConnectionError) and not self._has_tls
            hint = "; if it takes nothing but TLS, give --rocketmq-tls-ca" if may_want_tls else ""
            raise self._failed(f"did not answer: {_of_tls(error)}{hint}") from error
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
            raise self._failed(f"answered something else than RocketMQ's protocol: {error!r}") from error
        raise self._failed(f"answered code {answer.get('code')}: {answer.get('remark')}")

    def _read(self) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + self._timeout_seconds
        length, word = _PREFIX.unpack(self._exactly(_PREFIX.size, deadline))
        header_length = word & _HEADER_LENGTH_MASK
        if not header_length + 4 <= length <= MAX_ANSWER_BYTES or word >> 24:
            raise ValueError(f"a frame of {length} bytes with a header of {header_length}")
        header = self._exactly(header_length, deadline)
        return json.loads(header), self._exactly(length - 4 - header_length, deadline)

    def _exactly(self, count: int, deadline: float) -> bytes:
        """So many bytes of the answer. Memory grows with what has come, not with what was announced."""
        read = bytearray()
        while len(read) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"its answer was not whole after {self._timeout_seconds:g} s")
            self._socket.settimeout(left)
            piece = self._socket.recv(min(_PIECE_BYTES, count - len(read)))
            if not piece:
                raise ConnectionError("it closed the connection")
            read += piece
        return bytes(read)

    def _failed(self, problem: str) -> RocketmqError:
        return RocketmqError(self._endpoint, RichError(grpc.StatusCode.UNAVAILABLE, problem[:MAX_PROBLEM_CHARACTERS]))


def _of_tls(error: OSError) -> str:
    """Returns the text of an error, in OpenSSL's words for an error of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return str(error.reason or error) if isinstance(error, ssl.SSLError) else str(error)


def _lags(told: Mapping[str, Any]) -> Counter[tuple[str, str, str]]:
    """Messages that wait, by the broker's own name, consumer group and topic."""
    lags = Counter[tuple[str, str, str]]()
    for one in told["consumeStatsList"]:
        for group, of_topics in one.items():
            for stats in of_topics:
                for key, offsets in stats["offsetTable"].items():
                    queue = json.loads(key)
                    lag = int(offsets["brokerOffset"]) - int(offsets["consumerOffset"])
                    lags[str(queue["brokerName"]), str(group), str(queue["topic"])] += max(lag, 0)
    return lags


def _load(table: Mapping[str, str]) -> Load:
    levels = [value.split(",") for key, value in table.items() if key.startswith("scheduleMessageOffset_")]
    delayed = sum(max(int(end) - int(begin), 0) for begin, end in levels)
    timed = sum(max(int(table.get(key, "0")), 0) for key in ("timerCongestNum", "timerOffsetBehind"))
    # StoreStatsService writes the rates of 10, 60 and 600 s with spaces between. It leaves out what it cannot know yet.
    last_ten_seconds = table.get("putTps", "").partition(" ")[0]
    return Load(delayed, timed, float(last_ten_seconds) if last_ten_seconds else None)


def _queues(told: Mapping[str, Any]) -> list[route_data_pb2.QueueData]:
    clusters = {row["brokerName"]: row["cluster"] for row in told.get("brokerDatas", [])}
    return [
        route_data_pb2.QueueData(
            broker_name=row["brokerName"],
            cluster_name=clusters.get(row["brokerName"]),
            read_queue_nums=row["readQueueNums"],
            write_queue_nums=row["writeQueueNums"],
            perm=row["perm"],
        )
        for row in told.get("queueDatas", [])
    ]


def _group(row: Mapping[str, Any]) -> route_data_pb2.BrokerData:
    addrs = {int(broker_id): addr for broker_id, addr in row.get("brokerAddrs", {}).items()}
    return route_data_pb2.BrokerData(
        cluster_name=row["cluster"],
        broker_name=row["brokerName"],
        broker_addrs=[route_data_pb2.BrokerAddr(broker_id=key, broker_addr=addrs[key]) for key in sorted(addrs)],
    )


def _quoted(found: re.Match[str]) -> str:
    """A key with the quotes that fastjson leaves out; a text as it is."""
    before, number, queue = found.groups()
    if number is not None:
        return f'{before}"{number}"'
    return found.group() if queue is None else before + json.dumps(queue)
