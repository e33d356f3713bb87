#!/usr/bin/env python3
"""Writes docs/settings.md: the text of settings.intro.md, and the settings of each program from their classes."""

from __future__ import annotations

import ast
import inspect
import itertools
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le, MaxLen
from pydantic.fields import FieldInfo

from broker_agent.settings import AgentSettings
from docs.tools.generated_page import table, write_or_check
from namesrv.settings import NamesrvSettings
from namesrv_common.process.settings_cli import ADVANCED, ProgramSettings
from route_client.settings import ClientSettings

PROGRAMS: dict[str, type[ProgramSettings]] = {"namesrv serve": NamesrvSettings, "broker-agent serve": AgentSettings}
KINDS = {bool: "true, false", int: "number", float: "number", str: "text", Path: "path", list[str]: "list"}
HEAD = ("setting", "values", "default", "meaning")


def kind(annotation: Any) -> str:
    """The kind of a value. A setting that may be absent has the kind of its values."""
    if get_origin(annotation) in {Union, types.UnionType}:
        return kind(next(one for one in get_args(annotation) if one is not type(None)))
    if get_origin(annotation) is Annotated:
        return kind(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    return KINDS.get(annotation) or f"`{annotation.__name__}`"


def values(field: FieldInfo) -> str:
    """The values that a field takes: its range, its alternatives or its kind."""
    least, most = (
        next((getattr(rule, name) for rule in field.metadata if isinstance(rule, of)), None)
        for of, name in ((Ge, "ge"), (Le, "le"))
    )
    longest = next((rule.max_length for rule in field.metadata if isinstance(rule, MaxLen)), None)
    if least is not None:
        return f"{least:,} and more" if most is None else f"{least:,} to {most:,}"
    return f"text, at most {longest}" if longest else kind(field.annotation)


def default(value: object) -> str:
    """A default as a cell; empty if there is none."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else f"`{value}`"


def of_program(settings: type[ProgramSettings], *, advanced: bool) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the settings that many, or few, operators change."""
    for name, field in settings.model_fields.items():
        if (field.json_schema_extra == ADVANCED) == advanced:
            shown = "required" if field.is_required() else default(field.default)
            yield f"`{name}`", values(field), shown, str(field.description)


def of_client() -> Iterator[tuple[str, str, str, str]]:
    """The rows of the client's settings, which are documented by docstrings."""
    kinds = get_type_hints(ClientSettings)
    (body,) = (
        node.body for node in ast.parse(inspect.getsource(ClientSettings)).body if isinstance(node, ast.ClassDef)
    )
    for node, following in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            assert isinstance(following, ast.Expr), f"{node.target.id} has no docstring"
            assert isinstance(following.value, ast.Constant)
            name, text = node.target.id, " ".join(str(following.value.value).split())
            yield f"`{name}`", kind(kinds[name]), default(getattr(ClientSettings(), name)), text


def rendered() -> str:
    text = ""
    for program, settings in PROGRAMS.items():
        text += f"## {program}\n\n{table(HEAD, of_program(settings, advanced=False))}\n"
        text += f"Few operators change these:\n\n{table(HEAD, of_program(settings, advanced=True))}\n"
    return (
        f"{text}## The Python client\n\nFields of `ClientSettings`; times are in seconds.\n\n{table(HEAD, of_client())}"
    )


if __name__ == "__main__":
    write_or_check("settings", rendered())
