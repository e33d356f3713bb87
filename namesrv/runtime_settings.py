"""The settings by their names on the wire, and what an operator may change there."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from namesrv.core.errors import ConfigKeyDenied, InvalidField
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


AT_ONCE = frozenset(
    {
        "scan_not_active_broker_interval_millis",
        "delete_topic_with_broker_registration",
        "notify_min_broker_id_changed",
        "order_message_enable",
        "return_order_topic_config_to_broker",
    }
)
"""Fields whose change takes effect at once. As in AT_RESTART, they are settings that RocketMQ changes over the wire."""

AT_RESTART = frozenset({"support_acting_master"})
"""Fields whose change is stored, and takes effect with the next start."""

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


def _config_key(field: str) -> ConfigKey:
    effect = Effect.AT_ONCE if field in AT_ONCE else Effect.AT_RESTART if field in AT_RESTART else Effect.NEVER
    return ConfigKey(ROCKETMQ_NAMES.get(field) or to_camel(field), field, effect)


CONFIG_KEYS = MappingProxyType(
    {key.name: key for key in sorted(_config_key(field) for field in NamesrvSettings.model_fields)}
)
"""Every setting by its key, sorted."""


def _folded(name: str) -> str:
    return name.replace("_", "").lower()


_UPDATABLE = {_folded(name): name for name, key in CONFIG_KEYS.items() if key.effect is not Effect.NEVER}
"""Keys without case and underscores, to find the one that a misspelt key means. A field's name is such a spelling, too.
"""


class _GivenSettings(NamesrvSettings):
    """The same rules, but nothing is read from the environment or a file."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def with_texts(settings: NamesrvSettings, texts: Mapping[str, str]) -> NamesrvSettings:
    """The settings with some of them replaced, checked by the rules that hold for flags.

    Args:
        texts: New values as text by key.

    Raises:
        ConfigKeyDenied: A key never changes over the wire.
        InvalidField: A key is unknown, or a value breaks its rule.
    """
    names = sorted(texts)
    for name in names:  # checked first, so that no other mistake hides an attack
        _check_allowed(name)
    keys = [_known(name) for name in names]
    for key in keys:
        _check_text(key.name, texts[key.name])
    try:
        return _GivenSettings(**{**settings.model_dump(), **{key.field: texts[key.name] for key in keys}})
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        name = next(key.name for key in keys if problem["loc"] == (key.field,))
        raise _invalid(name, f"{problem['msg']} (got {problem['input']!r})") from None


def key_of(error: InvalidField) -> str:
    """The key that an error of ``with_texts`` is about; an unknown one as far as it can be shown."""
    return error.field.removeprefix("values[").removesuffix("]")


def _check_allowed(name: str) -> None:
    key = CONFIG_KEYS.get(name)
    if name in ROCKETMQ_DENIED or (key is not None and key.effect is Effect.NEVER):
        raise ConfigKeyDenied(name)


def _known(name: str) -> ConfigKey:
    if len(name) > MAX_KEY_CHARACTERS:
        raise _invalid(name, f"the key has {len(name)} characters, at most {MAX_KEY_CHARACTERS}")
    if name not in CONFIG_KEYS:
        meant = get_close_matches(_folded(name), _UPDATABLE, n=1)
        hint = f"did you mean {_UPDATABLE[meant[0]]}? " if meant else ""
        raise _invalid(name, f"there is no such setting; {hint}GetNamesrvConfig lists all")
    return CONFIG_KEYS[name]


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_VALUE_CHARACTERS:
        raise _invalid(name, f"has {len(text)} characters, at most {MAX_VALUE_CHARACTERS}")
    if not text.isprintable():
        raise _invalid(name, f"is {text!r}; only printable characters are allowed")


def _invalid(name: str, problem: str) -> InvalidField:
    """An error that names a key, with whatever characters it has."""
    shown = name[:MAX_KEY_CHARACTERS].encode("unicode_escape").decode()
    return InvalidField(f"values[{shown}]", problem)
