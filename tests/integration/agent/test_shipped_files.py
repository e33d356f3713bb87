"""The files of deploy/systemd as an agent meets them on a new machine."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs.processes import BIN, NamesrvProcess, Process, eventually

FILE = Path(__file__).parents[3] / "deploy/systemd/broker-a.toml"


def test_the_shipped_file_registers_a_broker_that_has_written_nothing_yet(tmp_path: Path) -> None:
    with NamesrvProcess() as namesrv, namesrv.connect() as client:
        text = FILE.read_text()
        shipped = 'namesrv = ["10.0.0.11:9878", "10.0.0.12:9878", "10.0.0.13:9878"]'
        for old, new in (
            (shipped, f'namesrv = ["{namesrv.endpoint}"]'),
            ('"10.0.0.21:10911"', f'"{namesrv.endpoint}"'),  # answers instead of the broker
            ("/var/lib/broker/config", str(tmp_path / "not there yet")),
            ("127.0.0.1:5558", "127.0.0.1:0"),
        ):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "broker-a.toml").write_text(text)
        serve = [str(BIN / "broker-agent"), "serve", "--config", str(tmp_path / "broker-a.toml")]
        with Process([*serve, "--log-format", "json", "--listen", "127.0.0.1:0"]) as agent:
            eventually(lambda: client.route("TBW102"))
            agent.wait_for("topics_file_awaited")
