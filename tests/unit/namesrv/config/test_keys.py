"""Settings by their keys: what can be changed over the wire, and by which rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from namesrv.core.errors import Reason
from namesrv.runtime_settings import (
    CHANGEABLE,
    FIELDS,
    MAX_KEY_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    ROCKETMQ_DENIED,
    ROCKETMQ_NAMES,
    text_of,
    with_texts,
)
from namesrv.settings import NamesrvSettings
from tests.support.refusals import refuses

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
    assert (raised.value.violations[0].field, raised.value.violations[0].description) == (
        f"values[{named}]",
        f"there is no such setting; {hint}GetNamesrvConfig lists all",
    )


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
