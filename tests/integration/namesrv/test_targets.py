"""Targets of gRPC clients: the client sends each as :authority, and not all are authorities of a URI."""

from __future__ import annotations

import grpc
import pytest

from tests.support.programs.processes import Client, NamesrvProcess


@pytest.mark.parametrize(
    "target",
    [
        "ipv4:127.0.0.1:{port},127.0.0.1:{port}",
        "ipv4:127.0.0.1:1,127.0.0.1:{port}",
        "dns:///LOCALHOST:{port}",
    ],
)
def test_a_target_of_grpcs_own_client_is_served(namesrv: NamesrvProcess, target: str) -> None:
    with grpc.insecure_channel(target.format(port=namesrv.endpoint.port)) as connection:
        assert Client(connection).route() is None


def test_the_authority_of_a_unix_socket_behind_a_proxy_is_served(namesrv: NamesrvProcess) -> None:
    # grpc-core sends it for unix:/tmp/name server.sock.
    options = [("grpc.default_authority", "tmp%2Fname%20server.sock")]
    with grpc.insecure_channel(str(namesrv.endpoint), options) as connection:
        assert Client(connection).route() is None
