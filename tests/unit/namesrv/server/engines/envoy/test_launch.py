"""What keeps this program from becoming Envoy is said in one line, and leaves nothing."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from groundwork.connections.listener_tls import ListenerFiles
from namesrv.config.settings import NamesrvSettings
from namesrv.server.engines.envoy.bootstrap import bootstrap, max_connections, secrets
from namesrv.server.engines.envoy.inside import Handed, NotInEnvoy, current
from namesrv.server.engines.envoy.launch import APPLICATION, CannotLaunch, become_envoy


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def settings(**flags: Any) -> NamesrvSettings:
    return NamesrvSettings.load(None, {"engine": "envoy", "listen": "127.0.0.1:0", **flags})


@pytest.mark.parametrize("missing", ["pyvoy._server", "cryptography"])
def test_a_missing_package_is_named_with_how_to_get_it(
    missing: str, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(CannotLaunch, match=r"pip install 'namesrv\[envoy\]'"):
        become_envoy(settings())
    assert list(temporary.iterdir()) == []


def test_a_port_in_use_is_named(temporary: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotLaunch, match=f"cannot listen on {listen}: Address already"):
            become_envoy(settings(listen=listen))
    assert list(temporary.iterdir()) == []


def test_a_folder_for_temporary_files_with_too_long_a_name_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = temporary / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(CannotLaunch, match=r"variable TMPDIR: .* longer than a socket's path may be"):
        become_envoy(settings())


def test_the_settings_come_through_as_they_were(tmp_path: Path) -> None:
    given = settings(name="a", slow_reader_timeout_millis=700, data_dir="data")
    Handed(given.model_dump(mode="json"), "127.0.0.1", 5, "/", 3).write(tmp_path)
    assert NamesrvSettings.model_validate(Handed.read(tmp_path).settings).model_dump() == given.model_dump()


def test_the_engine_is_not_built_outside_of_envoy() -> None:
    with pytest.raises(NotInEnvoy, match="runs inside Envoy only"):
        current()


def test_envoys_configuration_keeps_the_bounds_of_the_settings(tmp_path: Path) -> None:
    bounds = settings(max_concurrent_streams=7, keepalive_time_millis=1_500)
    config = bootstrap(bounds, ("127.0.0.1", 5), tmp_path, APPLICATION)
    listener = config["static_resources"]["listeners"][0]
    http = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert http["http2_protocol_options"]["max_concurrent_streams"] == 7
    assert http["http2_protocol_options"]["connection_keepalive"]["interval"] == "1.500s"
    assert "forward_client_cert_details" not in http, "nobody may say by a header who they are"
    assert "transport_socket" not in listener["filter_chains"][0]
    assert 0 < max_connections() < os.sysconf("SC_OPEN_MAX")


def test_certificates_are_named_by_whole_paths_and_no_key_is_copied(tmp_path: Path) -> None:
    files = ListenerFiles(Path("a.pem"), Path("a.key"), Path("ca.pem"))
    found = secrets(files, tmp_path)
    pair = found["pair.json"]["resources"][0]["tls_certificate"]
    assert pair["private_key"] == {"filename": str(Path.cwd() / "a.key")}
    assert found.keys() == {"pair.json", "authorities.json"}
