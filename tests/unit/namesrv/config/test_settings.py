"""Settings: which source wins, and what a bad one says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from namesrv.cli import app
from namesrv.settings import NamesrvSettings
from namesrv_common.process.settings_cli import unknown_variables


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "namesrv.toml"
    path.write_text('name = "from-file"\nengine = "native"\nlisten = "127.0.0.1:1"\n')
    return path


def test_flags_win_over_the_environment_over_the_file_over_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_NAME", "from-environment")
    monkeypatch.setenv("NAMESRV_LISTEN", "127.0.0.1:2")
    settings = NamesrvSettings.load(file, {"listen": "127.0.0.1:3"})
    assert (settings.listen, settings.name, settings.engine) == ("127.0.0.1:3", "from-environment", "native")
    assert settings.log_format == "text"


def test_the_printed_configuration_gives_the_same_settings(file: Path, tmp_path: Path) -> None:
    printed = CliRunner().invoke(app, ["serve", "--config", str(file), "--print-config"]).output
    again = tmp_path / "again.toml"
    again.write_text(printed)
    assert tomllib.loads(printed)["name"] == "from-file"
    assert NamesrvSettings.load(again, {}).model_dump() == NamesrvSettings.load(file, {}).model_dump()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--listen", "nowhere"], "setting listen: address 'nowhere' has no port"),
        (["--listen", "0.0.0.0:9876"], "namesrv: listen 0.0.0.0:9876 is beyond loopback and without TLS"),
        (["--engine", "warp"], "setting engine: Input should be 'native' or 'development' (got 'warp')"),
        (["--engine", "development", "--listen", "0.0.0.0:0"], "listen is 0.0.0.0:0, but engine is development"),
        (["--engine", "development", "--tls-cert", "a", "--tls-key", "b"], "tls_cert is set, but engine is dev"),
        (["--engine", "development", "--permits-file", "a"], "permits_file is set, but engine is development"),
        (["--engine", "development", "--remoting-listen", "localhost:0"], "remoting_listen is set, but engine is dev"),
        (
            ["--listen", "127.0.0.1:9876", "--remoting-listen", "127.0.0.1:9876"],
            "remoting_listen is 127.0.0.1:9876, but listen has that port",
        ),
        (
            ["--metrics-listen", "127.0.0.1:1", "--remoting-listen", "0.0.0.0:1", "--allow-insecure"],
            "metrics_listen is 127.0.0.1:1, but remoting_listen has that port",
        ),
        (["--data-dir", ""], "namesrv: setting data_dir: is empty\n"),
        (["--keepalive-time-millis", "1"], "setting keepalive_time_millis:"),
        (["--product-env-namesrv", ";".join(f"a:{port}" for port in range(1, 10))], "has 9 name servers, at most 8"),
        (["--config", "/nowhere/at/all.toml"], "--config /nowhere/at/all.toml: No such file or directory\n"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--print-config", *arguments])
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('nmae = "typo"\n', "namesrv: setting nmae: there is no such setting; did you mean name?\n"),
        ('data_dir = ""\n', "namesrv: setting data_dir: is empty\n"),
        ("not toml", "namesrv.toml"),
    ],
)
def test_a_file_that_makes_no_sense_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "namesrv.toml"
    path.write_text(content)
    result = CliRunner().invoke(app, ["serve", "--config", str(path), "--print-config"])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_an_unknown_flag_ends_the_start_with_the_nearest_names() -> None:
    result = CliRunner().invoke(app, ["serve", "--listn", "127.0.0.1:1", "--print-config"])
    assert result.exit_code == 2
    assert "No such option: --listn (Possible options: --listen" in result.stderr


def test_an_unknown_variable_is_a_warning_with_the_nearest_name() -> None:
    result = CliRunner().invoke(app, ["serve", "--print-config"], env={"NAMESRV_LISTN": "x", "NAMESRV_COLOUR": "x"})
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [
        "namesrv: warning: variable NAMESRV_COLOUR is ignored: there is no such setting",
        "namesrv: warning: variable NAMESRV_LISTN is ignored: there is no such setting; did you mean NAMESRV_LISTEN?",
    ]


@pytest.mark.parametrize(
    "name", ["ADDR", "PORT", "PORT_9876_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT_GRPC", "TLS_SERVER_NAME"]
)
def test_variables_that_others_set_cause_no_warning(name: str) -> None:
    assert unknown_variables(NamesrvSettings, {f"NAMESRV_{name}": "x"}) == []


def test_the_help_shows_advanced_options_last_and_what_is_not_printed() -> None:
    text = CliRunner().invoke(app, ["serve", "--help"]).output
    usual, _, advanced = text.partition("Advanced options:")
    assert "  --listen" in usual
    assert "  --config" in usual
    assert "  --cache-bytes" in advanced
    assert "without what was changed over the wire" in " ".join(text.split())


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_DATA_DIR", "")
    assert NamesrvSettings.load(None, {}).data_dir is None
