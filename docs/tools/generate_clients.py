#!/usr/bin/env python3
"""Writes docs/clients.md, the page for client authors, from clients.intro.md and the comments in protos/.

``python docs/tools/generate_clients.py`` writes the page. With ``--check`` it prints a diff, and exits with 1 if
the page is not up to date.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROTOS = DOCS.parent / "protos"
INTRO = DOCS / "clients.intro.md"
PAGE = DOCS / "clients.md"

PACKAGE = "namesrv_api.v1"
"""The name server's package. Its types are named as they are; the agent's say whose they are where both have one."""

NOTICE = "<!-- Written by docs/tools/generate_clients.py from clients.intro.md and protos/: edit those, not this. -->"

SERVICE_FILES = (
    "namesrv_api/v1/registration_service.proto",
    "namesrv_api/v1/route_service.proto",
    "namesrv_api/v1/admin_service.proto",
    "broker_agent_api/v1/broker_agent_service.proto",
    "broker_agent_api/v1/topic_config_service.proto",
    "broker_agent_api/v1/client_service.proto",
)
"""Files with a service, in the order of the page. A section has the service and the messages of its file."""

SHARED_FILE = "namesrv_api/v1/route_data.proto"
REASONS_FILE = "namesrv_api/v1/error_reason.proto"
AGENT_REASONS_FILE = "broker_agent_api/v1/error_reason.proto"

# Numbers that descriptor.proto gives the parts of a file; a comment's place is a path of them.
_FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE = 4, 5, 6
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM, _MESSAGE_ONEOF = 2, 3, 4, 8
_SERVICE_METHOD, _ENUM_VALUE = 2, 2

_ROCKETMQ_CALL = re.compile(r"\s*\(RocketMQ(?P<version> \d)?: (?P<name>[A-Z_]+), (?P<code>\d+)(?:; (?P<word>\w+))?\)")
_REASON_COMMENT = re.compile(r"(?P<code>[A-Z_]+): (?P<meaning>.+?)(?: Metadata: (?P<metadata>.+)\.)?", re.DOTALL)
_METADATA_KEY = re.compile(r"([a-z0-9_]+)(?: \(([^)]+)\))?(?:, |$)")
_CODE_WORD = re.compile(
    r"""
      "[^"]*"                                     # a quoted example
    | --[a-z][a-z-]+                              # a flag
    | \bgrpc-[a-z-]+                              # a metadata key
    | \bgoogle\.rpc\.\w+                          # a message of Google's
    | \b[a-z_]+=(?:true|false)\b                  # a field with its value
    | \b(?!gRPC\b|RocketMQ\b|[KMG]iB\b)\w*(?:_[A-Za-z]|[a-z][A-Z])\w*  # snake_case, UPPER_SNAKE, camelCase, CamelCase
    | \b[A-Z]{7,}\b                               # a gRPC code or another value of one word
    """,
    re.VERBOSE,
)
_SCALAR_TYPES = {
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
    FieldDescriptorProto.TYPE_DOUBLE: "double",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_UINT32: "uint32",
}
_LANGUAGES = {".go": "go", ".java": "java", ".json": "json", ".mjs": "js", ".py": "python", ".rs": "rust"}
"""The word after the backquotes of a block with a program, by the suffix of the program's file."""
_SNIPPET_BORDER = re.compile(r"^ *(?://|#) (?:end of )?snippet\n", re.MULTILINE)
_REFERENCES = (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM)


@dataclass(frozen=True, slots=True)
class Reason:
    """A row of the error table."""

    name: str
    """As ErrorInfo carries it, such as ``TOPIC_NOT_FOUND``."""
    code: str
    """Name of the gRPC status code, such as ``NOT_FOUND``."""
    meaning: str
    metadata: dict[str, str]
    """Keys of its metadata; to each when it is there, or nothing if it always is."""


class Comments:
    """The leading comments of one file, by the place of what they stand above."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._texts = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}

    def paragraphs(self, *path: int) -> list[str]:
        """The paragraphs of the comment at a place, each joined into one line."""
        text = "\n".join(line.strip() for line in self._texts.get(path, "").strip().splitlines())
        return [" ".join(paragraph.split("\n")) for paragraph in re.split(r"\n{2,}", text) if paragraph]

    def line(self, *path: int) -> str:
        """The whole comment at a place as one line."""
        return " ".join(self.paragraphs(*path))


def read_contract() -> dict[str, FileDescriptorProto]:
    """Compiles protos/ with buf; the result has the comments. Keyed by file name."""
    beside_python = Path(sys.executable).parent / "buf"
    buf = str(beside_python) if beside_python.exists() else shutil.which("buf")
    if buf is None:
        raise FileNotFoundError("buf is not installed: it comes with the development requirements (make setup)")
    command = [buf, "build", str(PROTOS), "--output", "-#format=binpb"]
    image = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout  # nothing of it is input
    return {file.name: file for file in FileDescriptorSet.FromString(image).file}


def error_reasons(file: FileDescriptorProto) -> list[Reason]:
    """Reads the error table from the comments of the ErrorReason enum, each of which starts with ``CODE: ``."""
    comments, reasons = Comments(file), []
    for index, value in enumerate(file.enum_type[0].value):
        if value.number == 0:
            continue
        comment = comments.line(_FILE_ENUM, 0, _ENUM_VALUE, index)
        match = _REASON_COMMENT.fullmatch(comment)
        if match is None:
            raise ValueError(f"the comment of {value.name} does not start with its gRPC code and a colon: {comment!r}")
        meaning = match["meaning"][0].upper() + match["meaning"][1:]
        keys = match["metadata"] or ""
        if _METADATA_KEY.sub("", keys):
            raise ValueError(f"the comment of {value.name} lists its metadata as {keys!r}, not as: key, key (if ...)")
        metadata = dict(_METADATA_KEY.findall(keys))
        reasons.append(Reason(value.name.removeprefix("ERROR_REASON_"), match["code"], meaning, metadata))
    return reasons


class Page:
    """Renders the contract as Markdown."""

    def __init__(self, files: dict[str, FileDescriptorProto]) -> None:
        self._files = files
        self._own_types = {name for file in files.values() if file.package == PACKAGE for name in _type_names(file)}
        self._headings = {
            (file.package, name): self._heading(file.package, name)
            for file in files.values()
            for name in _type_names(file)
        }
        self._package = PACKAGE  # of the file whose comments are being rendered

    def text(self) -> str:
        """The whole page."""
        parts = [NOTICE, _with_programs(INTRO.read_text(encoding="utf-8").strip())]
        for name in SERVICE_FILES:
            self._package = self._files[name].package
            parts += self._service(self._files[name])
            parts += self._types(self._files[name])
        self._package = PACKAGE
        parts += ["## Shared messages", "What the services of the name server have in common."]
        parts += self._types(self._files[SHARED_FILE])
        parts += self._reasons(self._files[REASONS_FILE], "Error reasons")
        self._package = self._files[AGENT_REASONS_FILE].package
        parts += self._reasons(self._files[AGENT_REASONS_FILE], "Error reasons of the agent")
        return "\n\n".join(parts) + "\n"

    def _service(self, file: FileDescriptorProto) -> Iterator[str]:
        comments, (service,) = Comments(file), file.service
        yield f"## {service.name}"
        yield f"`{file.package}.{service.name}`"
        yield from (self._prose(paragraph) for paragraph in comments.paragraphs(_FILE_SERVICE, 0))
        rows, notes = [], []
        for index, call in enumerate(service.method):
            row, note = self._call(service.name, call, comments.paragraphs(_FILE_SERVICE, 0, _SERVICE_METHOD, index))
            rows.append(row)
            notes += note
        yield _table(("Call", "RocketMQ", "What it does", "Errors"), rows)
        if notes:
            yield "\n".join(notes)

    def _call(
        self, service: str, call: MethodDescriptorProto, paragraphs: Sequence[str]
    ) -> tuple[Sequence[str], list[str]]:
        """A call's row, and a list item with what does not fit into it."""
        what, rocketmq = paragraphs[0], ""
        if match := _ROCKETMQ_CALL.search(what):
            word = f" ({match['word']})" if match["word"] else ""
            since = f" (since{match['version']})" if match["version"] else ""
            rocketmq = f"{match['code']}{since}<br>`{match['name']}`"
            what = what[: match.start()] + word + what[match.end() :]
        what, _, errors = what.partition(" Errors: ")
        further = []
        for paragraph in paragraphs[1:]:
            rest, found, named = f" {paragraph}".partition(" Errors: ")
            errors = named if found else errors
            if rest.strip():
                further.append(self._prose(rest.strip()))
        name = f"[{call.name}](#{_anchor(self._headings[_split(call.input_type)])})"
        if call.server_streaming:
            name += "<br>*server stream*"
        errors = errors if ". " in errors else errors.removesuffix(".")  # a bare list needs no full stop
        row = (name, rocketmq, self._prose(what), self._prose(errors))
        return row, [f"- **{call.name}**: {' '.join(further)}"] if further else []

    def _types(self, file: FileDescriptorProto) -> Iterator[str]:
        comments = Comments(file)
        for index, message in enumerate(file.message_type):
            yield from self._message(file, message, comments, (_FILE_MESSAGE, index), message.name)
        for index, enum in enumerate(file.enum_type):
            yield from self._enum(enum, comments, (_FILE_ENUM, index), enum.name)

    def _message(
        self, file: FileDescriptorProto, message: DescriptorProto, comments: Comments, path: tuple[int, ...], name: str
    ) -> Iterator[str]:
        yield f"### {self._headings[file.package, name]}"
        yield from (self._prose(paragraph, own=name) for paragraph in comments.paragraphs(*path))
        rows = []
        for index, field in enumerate(message.field):
            meaning = comments.line(*path, _MESSAGE_FIELD, index)
            kind, presence = self._field_type(file, message, field), _presence(message, field)
            rows.append((f"`{field.name}`", kind, presence, self._prose(meaning, own=name)))
        if rows:
            yield _table(("Field", "Type", "Presence", "Meaning"), rows)
        for index, oneof in enumerate(message.oneof_decl):
            if comment := comments.line(*path, _MESSAGE_ONEOF, index):  # the oneof of an optional field has none
                yield f"One of `{oneof.name}`: {self._prose(comment[0].lower() + comment[1:])}"
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, comments, (*path, _MESSAGE_ENUM, index), f"{name}.{enum.name}")

    def _enum(self, enum: EnumDescriptorProto, comments: Comments, path: tuple[int, ...], name: str) -> Iterator[str]:
        yield f"### {self._headings[self._package, name]}"
        yield from (self._prose(paragraph, own=name) for paragraph in comments.paragraphs(*path))
        yield _table(
            ("Value", "Number", "Meaning"),
            [
                (f"`{value.name}`", str(value.number), self._prose(comments.line(*path, _ENUM_VALUE, index)))
                for index, value in enumerate(enum.value)
            ],
        )

    def _reasons(self, file: FileDescriptorProto, heading: str) -> Iterator[str]:
        yield f"## {heading}"
        yield from (self._prose(paragraph) for paragraph in Comments(file).paragraphs(_FILE_ENUM, 0))
        yield _table(
            ("Reason", "gRPC code", "Meaning", "Metadata"),
            [
                (f"`{reason.name}`", f"`{reason.code}`", self._prose(reason.meaning), _keys(reason.metadata))
                for reason in error_reasons(file)
            ],
        )

    def _field_type(self, file: FileDescriptorProto, message: DescriptorProto, field: FieldDescriptorProto) -> str:
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = (self._field_type(file, nested, part) for part in nested.field)
                return f"map of {key} to {value}"
        if field.type in _REFERENCES:
            package, name = _split(field.type_name)
            single = f"[{name}](#{_anchor(self._headings[package, name])})"
        else:
            single = _SCALAR_TYPES[field.type]
        return f"list of {single}" if field.label == FieldDescriptorProto.LABEL_REPEATED else single

    def _heading(self, package: str, name: str) -> str:
        """A type's heading; one of the agent's that the name server has by the same name says whose it is."""
        return f"{name} (agent)" if package != PACKAGE and name in self._own_types else name

    def _prose(self, text: str, own: str = "") -> str:
        """A comment as Markdown: names as code, names of messages as links, except in their own section."""

        def marked(match: re.Match[str]) -> str:
            word = match[0].strip('"')
            heading = self._headings.get((self._package, word)) or self._headings.get((PACKAGE, word))
            return f"[{word}](#{_anchor(heading)})" if heading and word != own else f"`{word}`"

        return _CODE_WORD.sub(marked, text)


def _with_programs(text: str) -> str:
    """Returns the text with the programs that it names in comments on lines of their own.

    ``<!-- program: FILE -->`` stands for a whole program, ``<!-- snippet: FILE -->`` for its lines between the comments
    ``snippet`` and ``end of snippet``.
    """

    def shown(match: re.Match[str]) -> str:
        file = DOCS.parent / match["file"]
        code = file.read_text(encoding="utf-8")
        if match["extent"] == "snippet":
            _, code, _ = _SNIPPET_BORDER.split(code)
        most_newlines = 3 if file.suffix == ".py" else 2
        code = re.sub(rf"\n{{{most_newlines},}}", "\n" * most_newlines, _SNIPPET_BORDER.sub("", code))
        return f"```{_LANGUAGES[file.suffix]}\n{textwrap.dedent(code).strip()}\n```"

    return re.sub(r"^<!-- (?P<extent>program|snippet): (?P<file>\S+) -->$", shown, text, flags=re.MULTILINE)


def _keys(metadata: dict[str, str]) -> str:
    return ", ".join(f"`{key}` ({condition})" if condition else f"`{key}`" for key, condition in metadata.items())


def _type_names(file: FileDescriptorProto) -> Iterator[str]:
    for message in file.message_type:
        yield message.name
        yield from (f"{message.name}.{enum.name}" for enum in message.enum_type)
    if file.name not in {REASONS_FILE, AGENT_REASONS_FILE}:  # the reasons have sections of their own
        yield from (enum.name for enum in file.enum_type)


def _presence(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return "reads as empty"
    if field.HasField("oneof_index") and not field.proto3_optional:
        return f"one of `{message.oneof_decl[field.oneof_index].name}`"
    if field.proto3_optional or field.type == FieldDescriptorProto.TYPE_MESSAGE:
        return "explicit"
    zeros = {
        FieldDescriptorProto.TYPE_BOOL: "`false`",
        FieldDescriptorProto.TYPE_BYTES: "empty",
        FieldDescriptorProto.TYPE_ENUM: "its value 0",
        FieldDescriptorProto.TYPE_STRING: '`""`',
    }
    return f"reads as {zeros.get(field.type, '`0`')}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _anchor(heading: str) -> str:
    """The fragment by which a heading is linked, as GitHub and most renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _split(type_name: str) -> tuple[str, str]:
    """Package and name of a type, of its full name such as ``.namesrv_api.v1.GroupTopics``."""
    match = re.fullmatch(r"\.(?P<package>\w+\.v\d+)\.(?P<name>.+)", type_name)
    assert match is not None, type_name
    return match["package"], match["name"]


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    parser = argparse.ArgumentParser(description="Writes docs/clients.md from the comments in protos/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 with a diff if the page is stale")
    check = parser.parse_args().check
    text = Page(read_contract()).text()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    present = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    lines = present.splitlines(True), text.splitlines(True)
    sys.stdout.writelines(difflib.unified_diff(*lines, fromfile="docs/clients.md", tofile="docs/clients.md, fresh"))
    return 0 if present == text else 1


if __name__ == "__main__":
    raise SystemExit(main())
