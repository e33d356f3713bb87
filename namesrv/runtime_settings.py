"""The settings by their names on the wire, and RocketMQ's keys that operators change there."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from namesrv.core.errors import FieldProblems, Reason, Refused, invalid_field
from namesrv.settings import NamesrvSettings

MAX_KEY_CHARACTERS = 100
"""Longest key that is looked up and named in an error; HTTP/2 bounds the size of errors."""
MAX_VALUE_CHARACTERS = 255
"""Longest value: those that can be changed are switches and numbers."""

ROCKETMQ_NAMES = MappingProxyType(
    {
        "scan_not_active_broker_interval_millis": "scanNotActiveBrokerInterval",
        "broker_channel_expired_time_millis": "brokerChannelExpiredTime",
    }
)
"""Names that are not simply the field's in camel case. RocketMQ has milliseconds for both, too."""
FIELDS = MappingProxyType(
    dict(sorted((ROCKETMQ_NAMES.get(field) or to_camel(field), field) for field in NamesrvSettings.model_fields))
)
"""The field of every setting by its key, sorted: RocketMQ's key where there is one."""
CHANGEABLE = (
    *("deleteTopicWithBrokerRegistration", "notifyMinBrokerIdChanged", "orderMessageEnable"),
    *("returnOrderTopicConfigToBroker", "scanNotActiveBrokerInterval"),
)
"""Keys that change over the wire, at once. RocketMQ changes them there, too."""
ROCKETMQ_DENIED = frozenset(
    (
        *("rocketmqHome", "kvConfigPath", "configStorePath", "configStorePathName", "configBlackList"),
        *("listenPort", "bindAddress"),
    )
)
"""RocketMQ's settings that must never get a counterpart on the wire. With them, anyone could write a file of any
content anywhere (CVE-2023-33246, CVE-2023-37582), lift the ban on that, or move the listener."""


def text_of(settings: NamesrvSettings, key: str) -> str:
    """Returns a value as text; empty if there is none. A pydantic Secret would come out masked."""
    value = getattr(settings, FIELDS[key])
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def changeable_texts(settings: NamesrvSettings) -> dict[str, str]:
    """Returns the values of the keys that change over the wire."""
    return {key: text_of(settings, key) for key in CHANGEABLE}


def with_texts(settings: NamesrvSettings, texts: Mapping[str, str]) -> NamesrvSettings:
    """Returns the settings with some of them replaced, checked by the rules that hold for flags.

    Raises:
        CONFIG_KEY_DENIED: A key is not changed over the wire.
        INVALID_FIELD: A key is unknown, or a value breaks its rule.
    """
    for key in sorted(texts):  # checked first, so that no other mistake hides an attack
        if key in ROCKETMQ_DENIED:
            rule = "never changes over the wire"
        elif key in FIELDS and key not in CHANGEABLE:
            rule = f"changes with a start only: set --{FIELDS[key].replace('_', '-')}"
        else:
            continue
        raise Refused(Reason.CONFIG_KEY_DENIED, f"the setting {key} {rule}", key=key)
    problems, update = FieldProblems(), {}
    for key in sorted(texts):
        with problems:
            update[FIELDS.get(key, "")] = _value(key, texts[key])
    problems.raise_any()
    return settings.model_copy(update=update)


def _value(key: str, text: str) -> object:
    if len(key) > MAX_KEY_CHARACTERS:
        raise _invalid(key, f"the key has {len(key)} characters, at most {MAX_KEY_CHARACTERS}")
    if key not in FIELDS:
        meant = get_close_matches(key, CHANGEABLE, n=1)
        hint = f"did you mean {meant[0]}? " if meant else ""
        raise _invalid(key, f"there is no such setting; {hint}GetNamesrvConfig lists all")
    if len(text) > MAX_VALUE_CHARACTERS:
        raise _invalid(key, f"has {len(text)} characters, at most {MAX_VALUE_CHARACTERS}")
    if not text.isprintable():
        raise _invalid(key, f"is {text!r}; only printable characters are allowed")
    field = NamesrvSettings.model_fields[FIELDS[key]]
    rule: Any = Annotated[field.annotation, field]
    try:
        return cast("object", TypeAdapter(rule).validate_python(text))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        raise _invalid(key, f"{problem['msg']} (got {text!r})") from None


def _invalid(key: str, problem: str) -> Refused:
    """Makes an error that names a key, with whatever characters it has."""
    return invalid_field(f"values[{key[:MAX_KEY_CHARACTERS].encode('unicode_escape').decode()}]", problem)
