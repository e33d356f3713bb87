"""Name servers that cannot be reached: named with the cause, after the client has tried for some seconds."""

from __future__ import annotations

import socket
import threading

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from groundwork.endpoints import Endpoint
from route_pipeline import schemas
from route_pipeline.data_source import NamesrvDataSource
from route_pipeline.name_server import NamesrvError
from route_pipeline.options import Connecting, Timeouts
from route_pipeline.snapshot_rows import read_table
from tests.support.fakes.snapshot_name_server import serving, snapshot

QUICK = Connecting(Timeouts(connect=2, total=20))


def data_source(options: dict[str, str]) -> NamesrvDataSource:
    return NamesrvDataSource(CaseInsensitiveDict(options))


def test_a_name_server_that_does_not_answer_fails_the_plan_and_is_named() -> None:
    with serving(snapshot()) as fake:
        options = {"endpoints": f"{fake.endpoint},127.0.0.1:1", "connectTimeoutSeconds": "0.2"}
        with pytest.raises(NamesrvError, match=r"name server 127\.0\.0\.1:1: UNAVAILABLE"):
            data_source(options).reader(StructType()).partitions()
        assert len(data_source(options | {"onLost": "continue", "shards": "1"}).reader(StructType()).partitions()) == 1
    with pytest.raises(NamesrvError, match="no name server answers"):
        data_source(options | {"onLost": "continue"}).reader(StructType()).partitions()


def test_an_endpoint_where_nobody_listens_is_named_with_the_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NamesrvError, match=rf"name server 127\.0\.0\.1:{port}: UNAVAILABLE.*refused"):
        list(read_table(Endpoint("127.0.0.1", port), schemas.TOPIC_QUEUES, QUICK))


def test_a_port_that_does_not_speak_grpc_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer_garbage() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\nnot gRPC\n")

        thread = threading.Thread(target=answer_garbage)
        thread.start()
        try:
            with pytest.raises(NamesrvError, match=rf"name server 127\.0\.0\.1:{port}: UNAVAILABLE"):
                list(read_table(Endpoint("127.0.0.1", port), schemas.TOPIC_QUEUES, QUICK))
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
