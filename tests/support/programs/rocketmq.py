"""RocketMQ's remoting protocol, as small as tests need it: a client, a stand-in of a server, and what brokers send."""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from tests.support.patience import TIMEOUT
from tests.support.secured.certificates import Authority, Files

VERSION = 513
"""5.5.0's."""


class Answer(NamedTuple):
    """An answer."""

    code: int
    fields: dict[str, str]
    remark: str | None
    body: bytes
    opaque: int

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class RemotingClient:
    """A connection. Headers are JSON."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, timeout_seconds: float = TIMEOUT) -> None:
        """Connects."""
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_seconds)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket)
        self._file = self._socket.makefile("rb")
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def local_address(self) -> str:
        """This end, HOST:PORT, which is the peer for the server."""
        host, port = self._socket.getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Ends the connection."""
        self._file.close()
        self._socket.close()

    def ask(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", **more: int) -> Answer:
        """Sends a request and waits for its answer; ``more`` is for ``frame``."""
        opaque = self.send(code, fields, body, **more)
        answer = self.read()
        assert answer is not None, "the connection was closed"
        assert answer.opaque == opaque
        return answer

    def send(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", **more: int) -> int:
        """Sends a request; returns its number."""
        self._opaque += 1
        self.send_bytes(frame(code, fields, body, self._opaque, **more))
        return self._opaque

    def send_bytes(self, data: bytes) -> None:
        """Sends anything."""
        self._socket.sendall(data)

    def read(self) -> Answer | None:
        """The next answer; None if the connection was closed."""
        prefix = self._file.read(8)
        if len(prefix) < 8:
            return None
        length, word = struct.unpack(">II", prefix)
        header = json.loads(self._file.read(word & 0xFFFFFF))
        body = self._file.read(length - 4 - (word & 0xFFFFFF))
        return Answer(header["code"], header.get("extFields") or {}, header.get("remark"), body, header["opaque"])


def frame(
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    opaque: int = 1,
    *,
    flag: int = 0,
    version: int = VERSION,
) -> bytes:
    """A request as RocketMQ's brokers and clients write it: with members in alphabetical order and without blanks."""
    own = {"flag": flag, "language": "JAVA", "opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": version}
    given = {} if fields is None else {"extFields": dict(sorted(fields.items()))}
    header = json.dumps({"code": code, **given, **own}, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def broker_fields(name: str = "broker-a", addr: str = "127.0.0.1:10911", broker_id: int = 0) -> dict[str, str]:
    """Which broker a request is about."""
    return {"brokerName": name, "brokerAddr": addr, "clusterName": "DefaultCluster", "brokerId": str(broker_id)}


def topic_config(name: str, queues: int = 4, perm: int = 6) -> dict[str, Any]:
    """A TopicConfig."""
    return {
        "attributes": {},
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def registration_body(topics: Sequence[str | dict[str, Any]], counter: int = 1, **wrapper: Any) -> bytes:
    """A RegisterBrokerBody of topics by name, or as they are, with the members that RocketMQ 5 writes."""
    configs = [topic if isinstance(topic, dict) else topic_config(topic) for topic in topics]
    version = data_version(counter)
    table: dict[str, Any] = {"dataVersion": version, "mappingDataVersion": version}
    table |= {"topicConfigTable": {config["topicName"]: config for config in configs}}
    table |= {"topicQueueMappingDetailMap": {}, "topicQueueMappingInfoMap": {}, **wrapper}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": table}, separators=(",", ":")).encode()


def packed_body(topics: Sequence[str]) -> bytes:
    """The same in the form of brokers with compressedRegister, of version 4.9."""
    configs = [f"{topic} 4 4 6 SINGLE_TAG {{}}".encode() for topic in topics]
    version = json.dumps(data_version(1)).encode()
    parts = [version, *configs, b"[]"]
    sized = [struct.pack(">i", len(part)) + part for part in parts]
    return zlib.compress(b"".join([sized[0], struct.pack(">i", len(configs)), *sized[1:]]))


def data_version(counter: int) -> dict[str, int]:
    """A DataVersion."""
    return {"counter": counter, "stateVersion": 0, "timestamp": 1_795_340_540_541}


def register(
    client: RemotingClient,
    topics: Sequence[str | dict[str, Any]] = ("TopicTest",),
    broker: Mapping[str, str] | None = None,
    counter: int = 1,
    **wrapper: Any,
) -> Answer:
    """Registers a broker as RocketMQ 5 does."""
    body = registration_body(topics, counter, **wrapper)
    crc32 = str(zlib.crc32(body) & 0x7FFFFFFF)
    given = {"haServerAddr": "127.0.0.1:10912", "compressed": "false", "bodyCrc32": crc32}
    return client.ask(103, {**given, **(broker or broker_fields())}, body)


def server_tls(shown: Files, clients: Authority | None = None) -> ssl.SSLContext:
    """TLS of a server that shows a certificate, and asks clients for one if there is an authority for them."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*shown)
    if clients is not None:
        context.load_verify_locations(clients.path)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def stand_in(answer: Callable[[int], tuple[int, str, bytes]], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that answers each request code with a code, a remark and a body; yields its address.

    With TLS it closes connections without, as RocketMQ's programs do with ``tls.server.mode=enforcing``.
    """

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while len(prefix := self.rfile.read(8)) == 8:
                length, word = struct.unpack(">II", prefix)
                asked = json.loads(self.rfile.read(length - 4)[: word & 0xFF_FFFF])
                code, remark, body = answer(asked["code"])
                header = json.dumps({"code": code, "remark": remark, "flag": 1, "opaque": asked["opaque"]}).encode()
                self.wfile.write(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)

        def setup(self) -> None:
            if tls is not None:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def finish(self) -> None:
            super().finish()
            self.request.close()  # with TLS, the server does not know it

    class Server(socketserver.ThreadingTCPServer):
        def handle_error(self, *_: object) -> None:
            """A client that ends a handshake is what some tests are about."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(TIMEOUT)
