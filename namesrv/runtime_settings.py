"""The settings by their names on the wire, and what an operator may change there."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from groundwork.errors import FieldViolation
from namesrv.core.errors import FieldProblems, Refused, config_key_denied, invalid_field
from namesrv.settings import NamesrvSettings

MAX_KEY_CHARACTERS = 100
"""Longest key that is looked up and named in an error; HTTP/2 bounds the size of errors."""

MAX_VALUE_CHARACTERS = 255
"""Longest value: those that can be changed are switches, numbers and words."""


class Effect(Enum):
    """When a change over the wire takes effect."""

    NEVER = 0
    """It is refused: the setting says who may reach this name server, or what it writes where."""
    AT_RESTART = 1
    AT_ONCE = 2


RUNTIME_FIELDS = MappingProxyType(
    {
        "delete_topic_with_broker_registration": Effect.AT_ONCE,
        "notify_min_broker_id_changed": Effect.AT_ONCE,
        "order_message_enable": Effect.AT_ONCE,
        "return_order_topic_config_to_broker": Effect.AT_ONCE,
        "scan_not_active_broker_interval_millis": Effect.AT_ONCE,
        "support_acting_master": Effect.AT_RESTART,
    }
)
"""The fields that change over the wire. RocketMQ changes them there, too."""

ROCKETMQ_NAMES = MappingProxyType(
    {
        "scan_not_active_broker_interval_millis": "scanNotActiveBrokerInterval",
        "broker_channel_expired_time_millis": "brokerChannelExpiredTime",
    }
)
"""Names that are not simply the field's in camel case. Both are milliseconds there, too."""

ROCKETMQ_DENIED = frozenset(
    {
        "rocketmqHome",
        "kvConfigPath",
        "configStorePath",
        "configStorePathName",
        "configBlackList",
        "listenPort",
        "bindAddress",
    }
)
"""RocketMQ's settings that have no counterpart here and must never get one on the wire. With them, anyone could write a
file of any content anywhere (CVE-2023-33246, CVE-2023-37582), lift the ban on that, or move the listener.
"""


class ConfigKey(NamedTuple):
    """A setting as it is known on the wire."""

    name: str
    """Its key: RocketMQ's where there is one."""
    field: str
    """Its field in NamesrvSettings."""
    effect: Effect

    def text_of(self, settings: NamesrvSettings) -> str:
        """The value as text; empty if there is none. A pydantic Secret would come out masked."""
        value = getattr(settings, self.field)
        return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


CONFIG_KEYS = MappingProxyType(
    {
        key.name: key
        for key in sorted(
            ConfigKey(ROCKETMQ_NAMES.get(field) or to_camel(field), field, RUNTIME_FIELDS.get(field, Effect.NEVER))
            for field in NamesrvSettings.model_fields
        )
    }
)
"""Every setting by its key, sorted."""


def with_texts(settings: NamesrvSettings, texts: Mapping[str, str]) -> NamesrvSettings:
    """The settings with some of them replaced, checked by the rules that hold for flags.

    Raises:
        CONFIG_KEY_DENIED: A key never changes over the wire.
        INVALID_FIELD: A key is unknown, or a value breaks its rule.
    """
    names = sorted(texts)
    for name in names:  # checked first, so that no other mistake hides an attack
        _check_allowed(name)
    problems, update = FieldProblems(), {}
    for name in names:
        with problems:
            key = _known(name)
            update[key.field] = _value(key, texts[name])
    problems.raise_any()
    return settings.model_copy(update=update)


def key_of(violation: FieldViolation) -> str:
    """The key that an error of ``with_texts`` is about; an unknown one as far as it can be shown."""
    return violation.field.removeprefix("values[").removesuffix("]")


def _check_allowed(name: str) -> None:
    key = CONFIG_KEYS.get(name)
    if name in ROCKETMQ_DENIED or (key is not None and key.effect is Effect.NEVER):
        raise config_key_denied(name)


def _known(name: str) -> ConfigKey:
    if len(name) > MAX_KEY_CHARACTERS:
        raise _invalid(name, f"the key has {len(name)} characters, at most {MAX_KEY_CHARACTERS}")
    if name not in CONFIG_KEYS:
        changeable = [key.name for key in CONFIG_KEYS.values() if key.effect is not Effect.NEVER]
        meant = get_close_matches(name, changeable, n=1)
        hint = f"did you mean {meant[0]}? " if meant else ""
        raise _invalid(name, f"there is no such setting; {hint}GetNamesrvConfig lists all")
    return CONFIG_KEYS[name]


def _value(key: ConfigKey, text: str) -> object:
    if len(text) > MAX_VALUE_CHARACTERS:
        raise _invalid(key.name, f"has {len(text)} characters, at most {MAX_VALUE_CHARACTERS}")
    if not text.isprintable():
        raise _invalid(key.name, f"is {text!r}; only printable characters are allowed")
    field = NamesrvSettings.model_fields[key.field]
    rule: Any = Annotated[field.annotation, field]
    try:
        return cast("object", TypeAdapter(rule).validate_python(text))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise _invalid(key.name, f"{problem['msg']} (got {text!r})") from None


def _invalid(name: str, problem: str) -> Refused:
    """An error that names a key, with whatever characters it has."""
    shown = name[:MAX_KEY_CHARACTERS].encode("unicode_escape").decode()
    return invalid_field(f"values[{shown}]", problem)
