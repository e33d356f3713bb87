"""The envoy engine as a process: it is one, ends as one, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_service_pb2

from groundwork.endpoints import Endpoint
from groundwork.listening import check_bindable
from support.processes import Client, NamesrvProcess, Process, eventually
from support.secured import refused_start
from tests.integration.streams.filling import fill

pytestmark = pytest.mark.engines

pytest.importorskip("pyvoy", reason="pyvoy is missing")

FEW = 2
"""What ``few_unread_streams`` says, too."""

SNAPSHOT = route_service_pb2.StreamRouteSnapshotRequest()
UNAVAILABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


@pytest.fixture
def place_for_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where private folders are made: not where those of other tests are, and short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="private-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def namesrv(place_for_folders: Path) -> Iterator[NamesrvProcess]:
    assert place_for_folders.is_dir()
    with NamesrvProcess(engine="envoy") as process:
        yield process


class FewUnread(NamesrvProcess):
    """A name server that bounds what ended unread at a few streams."""

    def __init__(self) -> None:
        program = [sys.executable, "-m", "tests.integration.streams.few_unread_streams", "--engine", "envoy"]
        options = ("--listen", "127.0.0.1:0", "--log-format", "json", "--slow-reader-timeout-millis", "300")
        Process.__init__(self, [*program, *options, "--warm-up-millis", "0"])
        self.endpoint = Endpoint.parse(str(self.wait_for("namesrv_started")["listen"]))


def children_of(process: NamesrvProcess) -> list[str]:
    pid = process._popen.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()


def test_it_is_one_process_and_its_end_leaves_nothing(namesrv: NamesrvProcess, place_for_folders: Path) -> None:
    assert children_of(namesrv) == []
    assert len(list(place_for_folders.iterdir())) == 1
    with namesrv.connect() as client:
        channel = client.open_channel()
        assert namesrv.terminate() == 0
        assert channel.next_event().closing.reason == pb.ChannelClosing.REASON_SHUTDOWN
    assert list(place_for_folders.iterdir()) == []
    assert [line for line in namesrv.raw.splitlines() if '"event": "envoy"' in line] == []


def test_a_signal_of_the_terminal_ends_it_too(namesrv: NamesrvProcess) -> None:
    namesrv.signal(signal.SIGINT)
    namesrv.wait_for("namesrv_stopped")
    assert namesrv._popen.wait(20) == 0


def test_what_a_killed_one_left_is_removed_by_the_next(namesrv: NamesrvProcess, place_for_folders: Path) -> None:
    (left,) = place_for_folders.iterdir()
    namesrv.kill()
    assert left.is_dir()
    with NamesrvProcess(engine="envoy", port=namesrv.endpoint.port) as following:
        (own,) = place_for_folders.iterdir()
        assert own != left
        with NamesrvProcess(engine="envoy") as another:
            assert len(list(place_for_folders.iterdir())) == 2, "one that is in use stays"
            assert another.terminate() == 0
        assert following.terminate() == 0


def test_a_crash_of_envoy_is_the_end_of_python(namesrv: NamesrvProcess) -> None:
    with namesrv.connect() as client:
        channel = client.open_channel()
        namesrv.signal(signal.SIGSEGV)
        assert namesrv._popen.wait(20) != 0
        with pytest.raises(grpc.RpcError) as caught:
            channel.next_event()
        assert caught.value.code() in UNAVAILABLE
    check_bindable(namesrv.endpoint)


def test_streams_that_ended_unread_are_bounded_until_their_readers_read_on_or_go() -> None:
    with FewUnread() as namesrv, contextlib.ExitStack() as connections:
        client, *stalled = [connections.enter_context(namesrv.connect()) for _ in range(FEW + 1)]
        fill(client)
        streams: list[Any] = [reader.routes.StreamRouteSnapshot(SNAPSHOT, timeout=60) for reader in stalled]
        for stream in streams:
            next(iter(stream))
        eventually(lambda: len(namesrv.events("slow_reader_cut")), lambda seen: seen == FEW)
        assert "2 streams have ended" in eventually(lambda: refusal(client))
        assert client.open_channel().id, "channels of brokers are not refused"
        assert client.route("broker-0-topic-0") is not None
        with pytest.raises(grpc.RpcError):
            list(streams[0])
        eventually(lambda: not refusal(client))
        streams[1].cancel()


def refusal(client: Client) -> str:
    """Why a watch is refused; empty if it is not."""
    request = route_service_pb2.WatchTopicRoutesRequest(topics=["broker-0-topic-0"])
    stream: Any = client.routes.WatchTopicRoutes(request, timeout=20)
    try:
        next(iter(stream))
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return str(error.details())
    finally:
        stream.cancel()
    return ""


def test_a_port_in_use_and_an_unusable_data_directory_are_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert refused_start("--engine", "envoy", "--listen", listen) == (
            f"namesrv: setting listen: cannot listen on {listen}: Address already in use"
        )
    (tmp_path / "file").touch()
    assert "is not a folder" in refused_start("--engine", "envoy", "--data-dir", str(tmp_path / "file"))
