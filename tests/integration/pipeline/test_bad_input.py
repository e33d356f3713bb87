"""What goes wrong around the pipeline, seen without Spark: name servers that end, folders of others."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from namesrv_common.endpoints import Endpoint
from route_pipeline.name_server import NamesrvError
from route_pipeline.options import ReadRequest
from route_pipeline.spark_readers import NamesrvReader
from tests.support.fakes.snapshot_name_server import queue, serving, snapshot, topics_chunk
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import identity, registration

NOBODY = "127.0.0.1:1"
QUICK = {"connectTimeoutSeconds": "1", "timeoutSeconds": "60"}
pytestmark = pytest.mark.timeout(300)


def reader(*addresses: object, **options: str) -> NamesrvReader:
    return NamesrvReader(ReadRequest.of({"endpoints": ",".join(map(str, addresses)), **QUICK, **options}))


def test_of_three_name_servers_the_one_that_answers_is_read_where_that_was_asked_for() -> None:
    with serving(snapshot(topics_chunk(TopicTest=[queue("broker-a")]))) as fake:
        addresses = (NOBODY, fake.endpoint, "127.0.0.1:2")
        with pytest.raises(NamesrvError, match=f"^name server {NOBODY}: UNAVAILABLE.*refused"):
            reader(*addresses).partitions()
        going_on = reader(*addresses, onLost="continue")
        (part,) = going_on.partitions()
        assert sum(batch.num_rows for batch in going_on.read(part)) == 1


def test_if_none_of_them_answers_each_is_named() -> None:
    with pytest.raises(NamesrvError, match=r"no name server answers: name server 127.0.0.1:1: .*127.0.0.1:2: "):
        reader(NOBODY, "127.0.0.1:2", onLost="continue").partitions()


@contextmanager
def way_to(target: Endpoint, most_bytes: int) -> Iterator[tuple[Endpoint, threading.Event, threading.Event]]:
    """A way to a server that stands still once so many bytes came back over a connection, until it is told to end.

    Yields:
        Where it begins, what is set when it stands still, and what ends it.
    """
    stuck, over = threading.Event(), threading.Event()

    def carry(source: socket.socket, drain: socket.socket, left: float) -> None:
        with suppress(OSError):
            while (data := source.recv(16_384)) and left > 0:
                drain.sendall(data)
                left -= len(data)
            if left <= 0:
                stuck.set()
                over.wait(60)
        for side in (source, drain):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(16) as pool, ExitStack() as opened:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client = opened.enter_context(listener.accept()[0])
                    server = opened.enter_context(socket.create_connection((target.host, target.port)))
                    pool.submit(carry, client, server, math.inf)
                    pool.submit(carry, server, client, most_bytes)

        pool.submit(accept)
        try:
            yield Endpoint("127.0.0.1", listener.getsockname()[1]), stuck, over
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


def test_a_name_server_that_is_killed_in_the_middle_of_a_snapshot_is_an_error_and_not_a_shorter_table() -> None:
    with NamesrvProcess() as server:
        with server.connect() as client:
            topics = [f"A-topic-with-a-name-of-some-length-{number}" for number in range(10_000)]
            client.registration.RegisterBroker(registration(topics, identity()), timeout=60)
        with way_to(server.endpoint, most_bytes=200_000) as (way, stuck, over):
            whole = reader(way)
            (part,) = whole.partitions()
            with ThreadPoolExecutor(1) as pool:
                rows = pool.submit(lambda: [batch.num_rows for batch in whole.read(part)])
                assert stuck.wait(60)
                server.kill()
                over.set()
                error = rows.exception(60)
    assert isinstance(error, NamesrvError)
    assert str(error).startswith(f"name server {way}: UNAVAILABLE")
