"""Settings by their keys: what can be changed over the wire, and by which rules."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from namesrv.core.errors import ConfigKeyDenied, InvalidField
from namesrv.core.policy import Behaviour
from namesrv.runtime_settings import (
    AT_ONCE,
    AT_RESTART,
    CONFIG_KEYS,
    MAX_KEY_CHARACTERS,
    MAX_VALUE_CHARACTERS,
    ROCKETMQ_DENIED,
    ROCKETMQ_NAMES,
    Effect,
    key_of,
    with_texts,
)
from namesrv.settings import NamesrvSettings

ROCKETMQ_KEYS = {
    "clusterTest",
    "deleteTopicWithBrokerRegistration",
    "enableAllTopicList",
    "enableTopicList",
    "needWaitForService",
    "notifyMinBrokerIdChanged",
    "orderMessageEnable",
    "productEnvName",
    "returnOrderTopicConfigToBroker",
    "scanNotActiveBrokerInterval",
    "supportActingMaster",
    "waitSecondsForService",
}
"""Keys of RocketMQ's NamesrvConfig that have a setting here."""

NEVER = [
    "addressClaimMillis",
    "allowInsecure",
    "auditFileCount",
    "auditFileMaxBytes",
    "callerSharePercent",
    "clusterTest",
    "dataDir",
    "engine",
    "follow",
    "followStaleMillis",
    "followTlsCa",
    "followTlsServerName",
    "followTokenFile",
    "keptSharePercent",
    "listen",
    "logFormat",
    "metricsListen",
    "name",
    "permitsFile",
    "productEnvName",
    "productEnvNamesrv",
    "productEnvTlsCa",
    "productEnvTlsServerName",
    "productEnvTokenFile",
    "remotingAllow",
    "remotingAllowInsecure",
    "remotingListen",
    "remotingTls",
    "tlsCert",
    "tlsClientCa",
    "tlsKey",
]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> NamesrvSettings:
    monkeypatch.setenv("NAMESRV_KEEPALIVE_TIME_MILLIS", "7000")
    return NamesrvSettings.load(None, {"data_dir": "somewhere", "enable_topic_list": False})


def test_every_field_of_the_settings_has_one_key_and_the_keys_are_sorted() -> None:
    assert sorted(key.field for key in CONFIG_KEYS.values()) == sorted(NamesrvSettings.model_fields)
    assert list(CONFIG_KEYS) == sorted(CONFIG_KEYS)


def test_the_lists_name_fields_that_are_there_and_none_twice() -> None:
    assert AT_ONCE | AT_RESTART | ROCKETMQ_NAMES.keys() <= NamesrvSettings.model_fields.keys()
    assert not AT_ONCE & AT_RESTART
    assert not ROCKETMQ_DENIED & CONFIG_KEYS.keys()


def test_keys_are_those_of_rocketmq_where_it_has_the_setting() -> None:
    assert CONFIG_KEYS.keys() >= ROCKETMQ_KEYS


def test_everything_about_paths_listeners_and_trust_never_changes() -> None:
    assert [name for name, key in CONFIG_KEYS.items() if key.effect is Effect.NEVER] == NEVER


def test_all_that_the_core_goes_by_can_be_changed_and_only_the_acting_master_waits_for_a_restart(
    settings: NamesrvSettings,
) -> None:
    others = {name: "77" for name, key in CONFIG_KEYS.items() if key.field.startswith(("mass_loss", "wait_"))}
    switches = {
        name: str(not getattr(settings, key.field))
        for name, key in CONFIG_KEYS.items()
        if key.effect is Effect.AT_ONCE and isinstance(getattr(settings, key.field), bool)
    }
    millis = dict.fromkeys(("massLossWindowMillis", "massLossHoldMillis", "channelGraceMillis"), "7777")
    after = with_texts(settings, {**others, **switches, **millis}).behaviour
    unchanged = {
        field.name
        for field in fields(Behaviour)
        if getattr(after, field.name) == getattr(settings.behaviour, field.name)
    }
    assert unchanged == {"support_acting_master", "address_claim_seconds"}  # the second is about trust
    assert CONFIG_KEYS["supportActingMaster"].effect is Effect.AT_RESTART


def test_texts_become_typed_values_and_the_other_settings_stay(
    settings: NamesrvSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_KEEPALIVE_TIME_MILLIS", "8000")  # after the start: it must not be read again
    texts = {"enableTopicList": "true", "scanNotActiveBrokerInterval": "0", "logLevel": "debug"}
    after = with_texts(settings, texts)
    changed = {"enable_topic_list": True, "scan_not_active_broker_interval_millis": 0, "log_level": "debug"}
    assert after.model_dump() == {**settings.model_dump(), **changed}
    assert (after.keepalive_time_millis, after.data_dir) == (7000, Path("somewhere"))


@pytest.mark.parametrize("key", [*NEVER, *sorted(ROCKETMQ_DENIED)])
def test_a_denied_key_is_refused_whatever_its_value_and_its_company(settings: NamesrvSettings, key: str) -> None:
    for value in ("", "true", "x\n" * 1_000):
        with pytest.raises(ConfigKeyDenied, match=f"^the setting {key} never changes over the wire$") as raised:
            with_texts(settings, {"aaa": "unknown", "enableTopicList": "maybe", key: value})
        assert raised.value.metadata == {"key": key}


@pytest.mark.parametrize(
    ("key", "named", "meant"),
    [
        ("enableTopicLists", "enableTopicLists", "enableTopicList"),
        ("EnableTopicList", "EnableTopicList", "enableTopicList"),
        ("enable_topic_list", "enable_topic_list", "enableTopicList"),
        ("masslosspercnt", "masslosspercnt", "massLossPercent"),
        ("channel_grace", "channel_grace", "channelGraceMillis"),
        ("audit_file_count", "audit_file_count", None),  # it is never changed over the wire
        ("colour", "colour", None),
        ("", "", None),
        ("logLevel\nx\0", r"logLevel\nx\x00", "logLevel"),
        ("ключ", r"\u043a\u043b\u044e\u0447", None),
    ],
)
def test_an_unknown_key_is_named_in_printable_ascii_with_one_that_may_be_meant(
    settings: NamesrvSettings, key: str, named: str, meant: str | None
) -> None:
    with pytest.raises(InvalidField) as raised:
        with_texts(settings, {key: "true"})
    hint = f"did you mean {meant}? " if meant else ""
    assert (raised.value.field, raised.value.problem) == (
        f"values[{named}]",
        f"there is no such setting; {hint}GetNamesrvConfig lists all",
    )
    assert key_of(raised.value) == named


def test_a_long_key_is_shortened_in_its_error(settings: NamesrvSettings) -> None:
    with pytest.raises(InvalidField, match="no such setting"):
        with_texts(settings, {"k" * MAX_KEY_CHARACTERS: ""})
    with pytest.raises(InvalidField, match=f"has {MAX_KEY_CHARACTERS + 1} characters, at most 100") as raised:
        with_texts(settings, {"k" * (MAX_KEY_CHARACTERS + 1): ""})
    assert raised.value.field == f"values[{'k' * MAX_KEY_CHARACTERS}]"


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("enableTopicList", "maybe", "valid boolean.*got 'maybe'"),
        ("enableTopicList", "", "valid boolean"),
        ("keepaliveTimeMillis", "99", "greater than or equal to 100.*got '99'"),
        ("scanNotActiveBrokerInterval", "3600001", "less than or equal to 3600000"),
        ("maxConcurrentStreams", "many", "valid integer"),
        ("massLossPercent", "50.5", "valid integer"),
        ("massLossPercent", "9" * MAX_VALUE_CHARACTERS, "less than or equal to 100"),
        ("massLossPercent", "9" * (MAX_VALUE_CHARACTERS + 1), "has 256 characters, at most 255"),
        ("logLevel", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("logLevel", "info\nkvConfigPath=x", "only printable characters"),
        ("logLevel", "info\0", "only printable characters"),
        ("waitSecondsForService", "45\n", "only printable characters"),
        ("logLevel", "$(touch x)", "'debug', 'info'"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_the_limit(
    settings: NamesrvSettings, key: str, value: str, problem: str
) -> None:
    with pytest.raises(InvalidField, match=problem) as raised:
        with_texts(settings, {"enableAllTopicList": "false", key: value})
    assert raised.value.field == f"values[{key}]"


def test_texts_of_values_are_taken_back_as_the_same_values(settings: NamesrvSettings) -> None:
    texts = {name: key.text_of(settings) for name, key in CONFIG_KEYS.items() if key.effect is not Effect.NEVER}
    assert with_texts(settings, texts).model_dump() == settings.model_dump()
    assert CONFIG_KEYS["enableTopicList"].text_of(settings) == "false"
    assert CONFIG_KEYS["dataDir"].text_of(settings) == "somewhere"
    assert CONFIG_KEYS["name"].text_of(settings) == ""
