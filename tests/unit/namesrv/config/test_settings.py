"""Settings: which source wins, what a bad one says, and what changes over the wire by which rules."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from namesrv.cli import app
from namesrv.core.errors import Reason
from namesrv.settings import (
    CHANGEABLE,
    FIELDS,
    MAX_KEY_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    ROCKETMQ_DENIED,
    ROCKETMQ_NAMES,
    NamesrvSettings,
    text_of,
    with_texts,
)
from namesrv_common.process.settings_cli import unknown_variables
from tests.support.refusals import refuses


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
        (["--listen", ""], "setting listen: "),
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


def test_variables_that_others_set_cause_no_warning() -> None:
    names = ("ADDR", "PORT", "PORT_9876_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT_GRPC", "TLS_SERVER_NAME")
    assert unknown_variables(NamesrvSettings, {f"NAMESRV_{name}": "x" for name in names}) == []


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


DENIED = dict.fromkeys(sorted(ROCKETMQ_DENIED), "never changes over the wire") | {
    key: f"changes with a start only: set --{name.replace('_', '-')}"
    for key, name in FIELDS.items()
    if key not in CHANGEABLE
}
"""Keys that are refused, each with the end of its error."""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> NamesrvSettings:
    monkeypatch.setenv("NAMESRV_KEEPALIVE_TIME_MILLIS", "7000")
    return NamesrvSettings.load(None, {"data_dir": "somewhere", "return_order_topic_config_to_broker": False})


def test_every_field_has_one_key_and_the_lists_name_fields_that_are_there() -> None:
    assert sorted(FIELDS.values()) == sorted(NamesrvSettings.model_fields)
    assert list(FIELDS) == sorted(FIELDS)
    assert ROCKETMQ_NAMES.keys() <= NamesrvSettings.model_fields.keys()
    assert set(CHANGEABLE) <= FIELDS.keys()
    assert not ROCKETMQ_DENIED & FIELDS.keys()


def test_texts_become_typed_values_and_the_other_settings_stay(
    settings: NamesrvSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_KEEPALIVE_TIME_MILLIS", "8000")  # after the start: it must not be read again
    texts = {"returnOrderTopicConfigToBroker": "true", "scanNotActiveBrokerInterval": "0"}
    after = with_texts(settings, texts)
    changed = {"return_order_topic_config_to_broker": True, "scan_not_active_broker_interval_millis": 0}
    assert after.model_dump() == {**settings.model_dump(), **changed}
    assert (after.keepalive_time_millis, after.data_dir) == (7000, Path("somewhere"))


@pytest.mark.parametrize("key", DENIED)
def test_a_denied_key_is_refused_whatever_its_value_and_its_company(settings: NamesrvSettings, key: str) -> None:
    for value in ("", "true", "x\n" * 1_000):
        with refuses(Reason.CONFIG_KEY_DENIED, match=f"^the setting {key} {DENIED[key]}$") as raised:
            with_texts(settings, {"aaa": "unknown", "returnOrderTopicConfigToBroker": "maybe", key: value})
        assert raised.value.metadata == {"key": key}


@pytest.mark.parametrize(
    ("key", "named", "meant"),
    [
        ("orderMessageEnabled", "orderMessageEnabled", "orderMessageEnable"),
        ("journal_max_bytes", "journal_max_bytes", None),  # it is never changed over the wire
        ("orderMessageEnable\nx\0", r"orderMessageEnable\nx\x00", "orderMessageEnable"),
        ("ключ", r"\u043a\u043b\u044e\u0447", None),
    ],
)
def test_an_unknown_key_is_named_in_ascii_with_one_that_may_be_meant(
    settings: NamesrvSettings, key: str, named: str, meant: str | None
) -> None:
    with refuses(Reason.INVALID_FIELD) as raised:
        with_texts(settings, {key: "true"})
    hint = f"did you mean {meant}? " if meant else ""
    expected = (f"values[{named}]", f"there is no such setting; {hint}GetNamesrvConfig lists all")
    assert (raised.value.violations[0].field, raised.value.violations[0].description) == expected


def test_a_long_key_is_shortened_in_its_error(settings: NamesrvSettings) -> None:
    with refuses(Reason.INVALID_FIELD, match="no such setting"):
        with_texts(settings, {"k" * MAX_KEY_CHARACTERS: ""})
    with refuses(Reason.INVALID_FIELD, match=f"has {MAX_KEY_CHARACTERS + 1} characters, at most 100") as raised:
        with_texts(settings, {"k" * (MAX_KEY_CHARACTERS + 1): ""})
    assert raised.value.violations[0].field == f"values[{'k' * MAX_KEY_CHARACTERS}]"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("returnOrderTopicConfigToBroker", "maybe", "valid boolean.*got 'maybe'"),
        ("scanNotActiveBrokerInterval", "-1", "greater than or equal to 0.*got '-1'"),
        ("scanNotActiveBrokerInterval", "3600001", "less than or equal to 3600000"),
        ("scanNotActiveBrokerInterval", "9" * MAX_VALUE_CHARACTERS, "less than or equal to 3600000"),
        ("scanNotActiveBrokerInterval", "9" * (MAX_VALUE_CHARACTERS + 1), "has 256 characters, at most 255"),
        ("orderMessageEnable", "true\nkvConfigPath=x", "only printable characters"),
        ("orderMessageEnable", "true\0", "only printable characters"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_the_limit(
    settings: NamesrvSettings, key: str, value: str, problem: str
) -> None:
    with refuses(Reason.INVALID_FIELD, match=problem) as raised:
        with_texts(settings, {"notifyMinBrokerIdChanged": "true", key: value})
    assert raised.value.violations[0].field == f"values[{key}]"


def test_texts_of_values_are_taken_back_as_the_same_values(settings: NamesrvSettings) -> None:
    texts = {key: text_of(settings, key) for key in CHANGEABLE}
    assert with_texts(settings, texts).model_dump() == settings.model_dump()
    assert text_of(settings, "returnOrderTopicConfigToBroker") == "false"
    assert text_of(settings, "dataDir") == "somewhere"
    assert text_of(settings, "name") == ""
