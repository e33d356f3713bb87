"""The wall clock of a running name server is set, by libfaketime: nobody leaves for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.faults.fleet.fleet import PINGS
from tests.support.engines import require_native
from tests.support.programs.agents import Agent
from tests.support.programs.processes import BIN, Client, Process, eventually

LIBRARIES = sorted(Path("/usr/lib").glob("**/faketime/libfaketime.so.1"))
ADDR = "127.0.0.1:10911"
EXPIRY = ("--broker-channel-expired-time-millis", "30000", "--scan-not-active-broker-interval-millis", "200")


class SetClock:
    """The file that libfaketime reads at each question for the time: by how much the wall clock is wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set("+0")

    def set(self, offset: str) -> None:
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(offset, encoding="ascii")
        fresh.replace(self._path)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@contextmanager
def connect(listen: str) -> Iterator[Client]:
    with grpc.insecure_channel(listen, [("grpc.use_local_subchannel_pool", 1)]) as connection:
        yield Client(connection)


def _latest_wall_millis(client: Client) -> int:
    """When the broker was last heard of, as the name server's wall clock said."""
    rows = [row for message in client.snapshot() for row in message.chunk.live_brokers]
    return max((row.last_update_timestamp_millis for row in rows), default=0)


@pytest.mark.skipif(not LIBRARIES, reason="no libfaketime")
@pytest.mark.parametrize(("offset", "hours"), [("+1h", 1), ("-1h", -1)])
def test_nobody_leaves_when_the_wall_clock_steps_by_an_hour(tmp_path: Path, offset: str, hours: int) -> None:
    require_native()
    clock = SetClock(tmp_path / "offset")
    program = [str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--log-format", "json"]
    flags = ["--warm-up-millis", "0", *PINGS, *EXPIRY]
    with Process([*program, *flags], clock.environment) as server:
        listen = str(server.wait_for("namesrv_started")["listen"])
        often = ("--register-name-server-period-millis", "1000", "--keepalive-time-millis", "1000")
        with Agent(listen, *often, broker_addr=ADDR), connect(listen) as client:
            eventually(lambda: client.addrs() == {0: ADDR})
            before = _latest_wall_millis(client)
            clock.set(offset)
            # The name server has taken the new time, and has heard the broker several times since.
            eventually(lambda: abs(_latest_wall_millis(client) - before - hours * 3_600_000) < 1_800_000)
            latest = _latest_wall_millis(client)
            eventually(lambda: _latest_wall_millis(client) > latest + 6_000)
            assert client.addrs() == {0: ADDR}
            assert server.events("broker_removed") == []
            assert all(line["seconds"] < 1_000 for line in server.events("own_stall")), (
                "a busy machine makes short ones"
            )
