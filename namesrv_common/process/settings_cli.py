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
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar

import typer
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from typer.core import TyperCommand

from namesrv_common.client.channels import ClientSecurity
from namesrv_common.process.logs import LogFormat, LogLevel, configure_logs, report
from namesrv_common.tls.certificates import Validity
from namesrv_common.tls.listener_tls import CertificateCheck, ListenerTls

EXIT_BAD_START = 2
"""Exit code when a program cannot start as asked: bad setting, port in use, unreadable file."""


ADVANCED: JsonDict = {"advanced": True}
"""Extra of the fields that ``advanced`` makes."""

_PANEL, _ADVANCED_PANEL = "Options", "Advanced options"

_SERVICE_VARIABLE = re.compile(r"PORT|(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+)")
"""Variables without their prefix that Kubernetes sets for a Service of the program's name."""


class ProgramSettings(BaseSettings):
    """Base of the settings classes of programs.

    An unknown key of the file ends the start, with the nearest known key. An unknown variable with the program's
    prefix is logged as a warning, because others may set variables with that prefix.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    other_variables: ClassVar[str] = ""
    """A regular expression for variables, without prefix, that others read: they cause no warning."""

    log_format: LogFormat = Field("text", description="text for a terminal, json for one object a line.")
    log_level: LogLevel = Field("info", description="Lowest level that is logged: debug, info, warning or error.")

    @classmethod
    def load(cls, config_file: Path | None, flags: dict[str, Any]) -> Self:
        """Reads the settings. ``flags`` are the values given on the command line, by field name.

        Raises:
            pydantic.ValidationError: A value breaks its rule or a key is unknown.
            OSError: The file cannot be read.
            TOMLDecodeError: The file is not TOML.
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
SettingT = TypeVar("SettingT")


def advanced(default: SettingT, description: str, **rules: Any) -> SettingT:
    """A field of a setting that few operators change. ``--help`` shows it below all others."""
    return Field(default, description=description, json_schema_extra=ADVANCED, **rules)  # type: ignore[no-any-return]


def add_command(app: typer.Typer, name: str, settings: type[SettingsT], run: Callable[[SettingsT], None]) -> None:
    """Adds a command whose flags are the fields of a settings class, and ``--config`` and ``--print-config``.

    Args:
        settings: The settings class; a field ``data_dir`` becomes the flag ``--data-dir``.
        run: The command's function, called once logs are configured. Its docstring is the help text.
    """

    def command(*, config: Path | None, print_config: bool | None, **values: Any) -> None:
        flags = {key: value for key, value in values.items() if value not in (None, [], ())}
        loaded = _load_or_exit(settings, config, flags)
        configure_logs(loaded.log_format, loaded.log_level)
        for problem in unknown_variables(settings, os.environ):
            report(_program_of(settings), f"warning: {problem}", "variable_ignored", "warning")
        if print_config:
            typer.echo(loaded.as_toml(), nl=False)
        else:
            run(loaded)

    help_config = f"TOML file with any of these settings; variables {settings.model_config['env_prefix']}… win over it."
    help_print = "Print what flags, variables and the file come to, without what was changed over the wire, and exit."
    own_first = sorted(settings.model_fields.items(), key=lambda field: field[0] not in settings.__annotations__)
    options = {
        **{key: _flag(key, field) for key, field in own_first},
        "config": Annotated[Path | None, typer.Option("--config", help=help_config)],
        "print_config": Annotated[bool | None, typer.Option("--print-config", help=help_print)],
    }
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command(name, cls=_Command, help=inspect.getdoc(run), context_settings={"max_content_width": 120})(command)


class _Command(TyperCommand):
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


def _flag(key: str, field: FieldInfo) -> Any:
    """The annotation of a field's flag. Flags have no defaults of their own, or they would win over the environment."""
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
    return Annotated[kind, typer.Option(flag, help=help_text, rich_help_panel=panel, metavar=metavar)]


def _shown(value: object) -> str:
    """A default as text; empty if it is nothing, off or an empty list."""
    return "" if str(value) in ("None", "False", "[]") else "true" if value is True else str(value)


# The settings of TLS of a listener. A program that also calls shows the same certificate then.


class ListenerSecuritySettings(BaseModel):
    """Settings of a listener. With a certificate it takes TLS and nothing else."""

    tls_cert: Path | None = Field(
        None,
        description="This program's certificate, and those that it was signed by, PEM. Read again when it changes.",
    )
    tls_key: Path | None = Field(None, description="Its private key, PEM, not encrypted. Read again when it changes.")
    tls_client_ca: Path | None = Field(
        None, description="Certificates that clients' are checked with, PEM: each must show one. Needs tls_cert."
    )

    @model_validator(mode="after")
    def _check_listener(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_key is None else ("tls_key", "tls_cert")
            raise ValueError(f"{given} is set, but {missing} is not: a certificate and its key belong together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca is set, but tls_cert is not: clients are asked for certificates over TLS")
        return self

    @property
    def listens_with_tls(self) -> bool:
        return self.tls_cert is not None

    def listener_tls(self, check: CertificateCheck | None = None) -> ListenerTls | None:
        """Reads the files of the listener; None without TLS. Raises CertificateError."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return ListenerTls(self.tls_cert, self.tls_key, self.tls_client_ca, check=check)


def certificates(listener: ListenerTls | None, client: ClientSecurity | None) -> dict[str, Validity]:
    """When the certificates that a program shows are valid, by what it shows them for: listener or client."""
    found = {
        "listener": None if listener is None else listener.value.validity,
        "client": None if client is None else client.validity,
    }
    return {use: validity for use, validity in found.items() if validity is not None}
