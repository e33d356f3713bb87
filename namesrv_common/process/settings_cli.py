"""Settings of a program: one definition of each, read from flags, environment and a TOML file.

A settings class is a frozen pydantic model; its field descriptions become the help texts of the flags. A flag
wins over the environment, the environment over the file, the file over the default. The command line of
pydantic-settings prints another help and other errors than typer, and takes shortened flags.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar

import typer
from pydantic import ValidationError
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from namesrv_common.process.command_line import LoggingCommand, report, write_json_lines

EXIT_BAD_START = 2
"""Exit code when a program cannot start as asked: bad setting, port in use, unreadable file."""


ADVANCED: JsonDict = {"advanced": True}
"""Marks a setting that few operators change: ``Field(5, json_schema_extra=ADVANCED)``."""

_PANEL, _ADVANCED_PANEL = "Options", "Advanced options"

_SERVICE_VARIABLE = re.compile(r"PORT|(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+)")
"""Variables without their prefix that Kubernetes sets for a Service of the program's name."""


class ProgramSettings(BaseSettings):
    """Base of the settings classes of programs.

    An unknown key of the file ends the start, with the nearest known key. An unknown variable with the program's
    prefix is logged as a warning, because others may set variables with that prefix.

    ``--help`` shows fields marked with ``json_schema_extra=ADVANCED`` below all others.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    other_variables: ClassVar[str] = ""
    """A regular expression for variables, without prefix, that others read: they cause no warning."""

    @classmethod
    def load(cls, config_file: Path | None, flags: dict[str, Any]) -> Self:
        """Reads the settings. ``flags`` are the values given on the command line, by field name.

        Raises:
            pydantic.ValidationError: A value breaks its rule or a key is unknown.
            OSError: The file cannot be read.
            tomllib.TOMLDecodeError: The file is not TOML.
        """
        if config_file is not None:
            config_file.open("rb").close()  # pydantic-settings ignores a file that is not there

        class Configured(cls):  # type: ignore[valid-type,misc]
            model_config = SettingsConfigDict(toml_file=config_file)

        return Configured(**flags)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        *_: Any,
        **_others: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, the environment and the file, in this order. Called by pydantic-settings."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def as_toml(self) -> str:
        """The settings in force as the text of a TOML file."""
        values = self.model_dump(mode="json", exclude_none=True)
        # JSON's strings, numbers, booleans and arrays of them are TOML's, too.
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


SettingsT = TypeVar("SettingsT", bound=ProgramSettings)


def add_command(app: typer.Typer, name: str, settings: type[SettingsT], run: Callable[[SettingsT], None]) -> None:
    """Adds a command whose flags are the fields of a settings class, and ``--config`` and ``--print-config``.

    Args:
        settings: The settings class; a field ``data_dir`` becomes the flag ``--data-dir``.
        run: The command's function. Its docstring is the help text.
    """

    def command(*, config: Path | None, print_config: bool, **values: Any) -> None:
        flags = {key: value for key, value in values.items() if value not in (None, [], ())}
        if _log_format(settings, config, flags) == "json":
            write_json_lines()
        loaded = _load_or_exit(settings, config, flags)
        for problem in unknown_variables(settings, os.environ):
            report(_program_of(settings), f"warning: {problem}", "variable_ignored", "warning")
        if print_config:
            typer.echo(loaded.as_toml(), nl=False)
        else:
            run(loaded)

    help_config = f"TOML file with any of these settings; variables {settings.model_config['env_prefix']}… win over it."
    help_print = "Print what flags, variables and the file come to, without what was changed over the wire, and exit."
    parameters = [
        *(_parameter(key, field) for key, field in settings.model_fields.items()),
        _option("config", Annotated[Path | None, typer.Option("--config", help=help_config)]),
        _option("print_config", Annotated[bool, typer.Option("--print-config", help=help_print)], default=False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    kind = type("Command", (_Command,), {"variable": f"{settings.model_config['env_prefix']}LOG_FORMAT"})
    app.command(name, cls=kind, help=inspect.getdoc(run), context_settings={"max_content_width": 120})(command)


class _Command(LoggingCommand):
    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {_PANEL: [], _ADVANCED_PANEL: []}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                panels[getattr(parameter, "rich_help_panel", None) or _PANEL].append(record)
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def unknown_variables(settings: type[ProgramSettings], environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that has the program's prefix and is unknown."""
    prefix = str(settings.model_config["env_prefix"])
    rests = sorted(name.removeprefix(prefix) for name in environment if name.startswith(prefix))
    known = [key.upper() for key in settings.model_fields]
    return [
        f"variable {prefix}{rest} is ignored: there is no such setting{_nearest(rest, known, prefix)}"
        for rest in rests
        if rest not in known
        and not _SERVICE_VARIABLE.fullmatch(rest)
        and not re.fullmatch(settings.other_variables, rest)
    ]


def _nearest(name: str, known: Collection[str], prefix: str = "") -> str:
    """A question for the nearest known name; empty without one."""
    found = get_close_matches(name, known, n=1)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


def exit_with(program: str, message: str) -> NoReturn:
    """Ends a program that cannot start: one line on standard error, exit code 2."""
    report(program, message, "cannot_start", "error")
    raise SystemExit(EXIT_BAD_START)


def _log_format(settings: type[ProgramSettings], config_file: Path | None, flags: Mapping[str, Any]) -> object:
    """Returns the log format of the settings, even if they have errors, which are then logged in that format."""
    given = flags.get("log_format") or os.environ.get(f"{settings.model_config['env_prefix']}LOG_FORMAT")
    if given or config_file is None:
        return given
    with suppress(OSError, ValueError):
        return tomllib.loads(config_file.read_text(encoding="utf-8")).get("log_format")
    return None


def _load_or_exit(settings: type[SettingsT], config_file: Path | None, flags: dict[str, Any]) -> SettingsT:
    program = _program_of(settings)
    try:
        return settings.load(config_file, flags)
    except ValidationError as error:
        problems = "; ".join(_problem(item, settings) for item in error.errors())
        exit_with(program, problems)
    except OSError as error:
        exit_with(program, f"--config {config_file}: {error.strerror}")
    except ValueError as error:
        exit_with(program, f"--config {config_file}: {error}")


def _program_of(settings: type[ProgramSettings]) -> str:
    return str(settings.model_config["env_prefix"]).strip("_").lower().replace("_", "-")


def _problem(item: Any, settings: type[ProgramSettings]) -> str:
    message = str(item["msg"]).removeprefix("Value error, ")
    if not item["loc"]:  # the error is about several settings, which its text names
        return message
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"setting {key}: there is no such setting{_nearest(key, settings.model_fields)}"
    value = "" if item["type"] in ("missing", "value_error") else f" (got {item['input']!r})"
    return f"setting {key}: {message}{value}"


def _parameter(key: str, field: FieldInfo) -> inspect.Parameter:
    """A flag for a field. Flags have no defaults of their own, or they would win over the environment."""
    flag = "--" + key.replace("_", "-")
    default = "" if field.is_required() else _shown(field.default)
    help_text = f"{field.description} [default: {default}]" if default else str(field.description)
    panel = _ADVANCED_PANEL if field.json_schema_extra == ADVANCED else None
    kind: Any = str | None  # also of numbers: pydantic converts them, and says in one line what is wrong with them
    if field.annotation is bool:
        flag, kind = f"{flag}/--no-{flag[2:]}", bool | None
    elif field.annotation == list[str]:
        kind = list[str] | None
    metavar = "INTEGER" if field.annotation is int else None
    option = typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar)
    return _option(key, Annotated[kind, option])


def _option(name: str, annotation: Any, *, default: bool | None = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _shown(value: object) -> str:
    """A default as text; empty if it is nothing, off or an empty list."""
    return "" if str(value) in ("None", "False", "[]") else "true" if value is True else str(value)
