"""Changes of the settings over the wire: one at a time, on disk first, then in force."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from namesrv.core.changes import Cause, ConfigPut
from namesrv.core.errors import ConfigKeyDenied, InvalidField, NoDataDir, ShuttingDown
from namesrv.runtime_settings import CONFIG_KEYS, Effect, key_of, with_texts
from namesrv.settings import NamesrvSettings
from namesrv.storage.config_file import ConfigFile
from namesrv.storage.data_dir import DataDirError
from namesrv.storage.ordered_commits import OrderedCommits

MAX_WAITING_CONFIG_CHANGES = 100
"""Most calls that wait until the disk has taken the changes before them."""

ApplySettings = Callable[[NamesrvSettings, Sequence[ConfigPut], Cause], None]
"""Called with the settings in force after a change, the keys whose value changed (also those that take effect only with
the next start), and the cause. It runs on the event loop: it must be quick and must not raise.
"""

_log = structlog.get_logger(__name__)


class _Prepared(NamedTuple):
    """The outcome that a change would have."""

    texts: Mapping[str, str]
    """What is to be in the file."""
    in_force: NamesrvSettings
    at_next_start: NamesrvSettings
    rows: tuple[ConfigPut, ...]
    """The keys whose value changes, sorted."""


class ConfigStore:
    """The settings in force, and those that the next start would have."""

    def __init__(
        self,
        settings: NamesrvSettings,
        file: ConfigFile | None,
        apply: ApplySettings,
        frozen: Callable[[], bool],
        max_waiting: int = MAX_WAITING_CONFIG_CHANGES,
    ) -> None:
        """Applies what operators changed before to the settings; their values win. Without a file, none can change.

        Raises:
            DataDirError: The file cannot be loaded, or holds a key or a value that could not be set over the wire.
        """
        self._file = file
        self._apply = apply
        self._frozen = frozen
        self._commits = OrderedCommits("config", max_waiting)
        self._texts: Mapping[str, str] = file.load() if file is not None else {}
        self.settings = settings if file is None else _overridden(settings, self._texts, file)
        """The settings in force. A change that needs a restart is not visible here."""
        self._at_next_start = self.settings

    async def change(self, values: Mapping[str, str], cause: Cause) -> tuple[ConfigPut, ...]:
        """Changes settings, all or none, and returns the ones whose value changed once they are durable.

        A setting that gets the value that it has already is stored, too, so that it wins over a later flag, but it is
        not a change. A change whose turn has come is made even if its caller goes away.

        Raises:
            ConfigKeyDenied: A key never changes over the wire.
            InvalidField: A key is unknown, or a value breaks its rule.
            NoDataDir: There is nowhere to write.
            NotDurable: The disk did not take it; nothing has changed.
            Overloaded: Too many changes wait already.
            ShuttingDown: No more changes are taken.
        """
        return await self._commits.run(partial(self._commit, values, cause))

    def preview(self, values: Mapping[str, str]) -> tuple[ConfigPut, ...]:
        """What ``change`` would return. Only checks the values, so it needs no data directory.

        Raises:
            ConfigKeyDenied: A key never changes over the wire.
            InvalidField: A key is unknown, or a value breaks its rule.
        """
        return self._prepare(values).rows

    def pending(self, name: str) -> str:
        """A setting's value as the next start would have it, as text."""
        return CONFIG_KEYS[name].text_of(self._at_next_start)

    async def close(self, deadline_seconds: float) -> None:
        """Waits for the write under way and ends the writer thread. ``frozen`` must answer true before."""
        await self._commits.close(deadline_seconds)

    async def _commit(self, values: Mapping[str, str], cause: Cause) -> tuple[ConfigPut, ...]:
        if self._frozen():
            raise ShuttingDown
        prepared = self._prepare(values)
        if self._file is None:
            raise NoDataDir
        if prepared.texts != self._texts:
            await self._commits.write(self._file.save, prepared.texts)
        self._texts, self._at_next_start = prepared.texts, prepared.at_next_start
        if prepared.rows:
            self.settings = prepared.in_force
            for row in prepared.rows:
                _log.info("config_changed", key=row.key, value=row.value, caller=cause.caller)
            self._apply(self.settings, prepared.rows, cause)
        return prepared.rows

    def _prepare(self, values: Mapping[str, str]) -> _Prepared:
        before, after = self._at_next_start, with_texts(self._at_next_start, values)
        keys = [CONFIG_KEYS[name] for name in sorted(values)]
        changed = [key for key in keys if key.text_of(after) != key.text_of(before)]
        at_once = {key.field: getattr(after, key.field) for key in keys if key.effect is Effect.AT_ONCE}
        return _Prepared(
            texts={**self._texts, **{key.name: key.text_of(after) for key in keys}},
            in_force=self.settings.model_copy(update=at_once),
            at_next_start=after,
            rows=tuple(ConfigPut(key.name, key.text_of(after)) for key in changed),
        )


def _overridden(settings: NamesrvSettings, texts: Mapping[str, str], file: ConfigFile) -> NamesrvSettings:
    try:
        overridden = with_texts(settings, texts)
    except ConfigKeyDenied as error:
        problem = "never changes over the wire; remove it from the file"
        raise DataDirError(f"{file.path}: {error.metadata['key']}: {problem}") from error
    except InvalidField as error:
        key = key_of(error)
        problem = error.problem if key in CONFIG_KEYS else "there is no such setting; remove it from the file"
        raise DataDirError(f"{file.path}: {key}: {problem}") from error
    for key, value in sorted(texts.items()):
        _log.info("config_override", key=key, value=value)
    return overridden
