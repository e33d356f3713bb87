"""The site's pages about gRPC, made from protos/ and its comments, and the page with the watch programs."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
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

from docs.tools.generated_page import table
from namesrv.error_codes import ERROR_CODES, ResponseCode
from namesrv.remoting.wire import RequestCode

ROOT = Path(__file__).parents[2]
PROTOS = ROOT / "protos"
FOLDER = "docs/grpc"
"""Folder of the pages on the site. They are not in the repository, where protos/ is as readable."""

PACKAGE = "namesrv_api.v1"
"""The name server's package. The agent's files use its types."""

SERVICE_FILES = (
    "namesrv_api/v1/registration_service.proto",
    "namesrv_api/v1/route_service.proto",
    "namesrv_api/v1/admin_service.proto",
    "broker_agent_api/v1/broker_agent_service.proto",
    "broker_agent_api/v1/topic_config_service.proto",
    "broker_agent_api/v1/client_service.proto",
)
"""Files with a service. A page has the service and the messages of its file."""

SHARED_FILE = "namesrv_api/v1/route_data.proto"
REASONS_FILE = "namesrv_api/v1/error_reason.proto"
AGENT_REASONS_FILE = "broker_agent_api/v1/error_reason.proto"

PROGRAMS_PAGE = f"{FOLDER}/programs.md"
ROCKETMQ_PAGE = f"{FOLDER}/rocketmq_requests.md"

# Numbers that descriptor.proto gives the parts of a file; a comment's position is a path of them.
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
_PROGRAMS = {
    "Python": ("watch/watch.py", "python"),
    "Node": ("watch/watch.mjs", "js"),
    "Rust": ("watch/watch.rs", "rust"),
    "Service config": ("service_config.json", "json"),
}
"""Files of examples/ that the site shows whole, each with the word after the backquotes of its block."""
_LISTED_BY = {
    ("AdminService", "ListKvConfigs"): (RequestCode.GET_KVLIST_BY_NAMESPACE,),
    ("RouteService", "ListTopics"): (
        RequestCode.GET_ALL_TOPIC_LIST,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ),
}
"""Calls that replace requests that their comments do not name."""
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
    """The leading comments of one file, by the position of the element below them."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._texts = {tuple(place.path): place.leading_comments for place in file.source_code_info.location}

    def paragraphs(self, *path: int) -> list[str]:
        """The paragraphs of the comment at a position, each joined into one line."""
        text = "\n".join(line.strip() for line in self._texts.get(path, "").strip().splitlines())
        return [" ".join(paragraph.split("\n")) for paragraph in re.split(r"\n{2,}", text) if paragraph]

    def line(self, *path: int) -> str:
        """The whole comment at a position as one line."""
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
    """Reads the error table from the comments of the ErrorReason enum. Each comment starts with ``CODE: ``."""
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


class Reference:
    """The pages of the services, of the messages that they share, and of the error reasons."""

    def __init__(self) -> None:
        self._files = read_contract()
        self._pages = {(file.package, name): page_of(file.name) for file, name in self._types_of(self._files)}
        self._file = self._files[SHARED_FILE]
        """The file and the page that are being rendered."""
        self._page = page_of(SHARED_FILE)

    @staticmethod
    def _types_of(files: dict[str, FileDescriptorProto]) -> Iterator[tuple[FileDescriptorProto, str]]:
        for file in files.values():
            for message in file.message_type:
                yield file, message.name
                yield from ((file, f"{message.name}.{enum.name}") for enum in message.enum_type)
            yield from ((file, enum.name) for enum in file.enum_type)

    def pages(self) -> Iterator[tuple[str, str]]:
        """Each page's path in the repository, and its text."""
        for name in SERVICE_FILES:
            yield self._page_of_file(name, self._service())
        yield self._page_of_file(SHARED_FILE, self._shared())
        yield self._page_of_file(REASONS_FILE, self._reasons("Error reasons"))
        yield self._page_of_file(AGENT_REASONS_FILE, self._reasons("Error reasons of the agent"))
        self._page = ROCKETMQ_PAGE
        yield self._page, _joined(self._rocketmq_requests())

    def _page_of_file(self, file: str, parts: Iterator[str]) -> tuple[str, str]:
        """A page, whose parts are rendered as those of a file."""
        self._file, self._page = self._files[file], page_of(file)
        return self._page, _joined(parts)

    def _shared(self) -> Iterator[str]:
        yield "# Shared messages"
        yield "Messages of more than one service of the name server."
        yield from self._types()

    def _service(self) -> Iterator[str]:
        comments, (service,) = Comments(self._file), self._file.service
        yield f"# {service.name}"
        yield f"`{self._file.package}.{service.name}`"
        yield from (self._prose(paragraph) for paragraph in comments.paragraphs(_FILE_SERVICE, 0))
        below: set[str] = set()
        for index, call in enumerate(service.method):
            yield f"## {call.name}"
            yield from self._call(call, comments.paragraphs(_FILE_SERVICE, 0, _SERVICE_METHOD, index))
            for name in (_split(call.input_type)[1], _split(call.output_type)[1]):
                if self._pages.get((self._file.package, name)) == page_of(self._file.name) and name not in below:
                    below.add(name)
                    yield from self._types({name})
        yield "## Other messages"
        yield from self._types({name for file, name in self._types_of({"": self._file})} - below)

    def _call(self, call: MethodDescriptorProto, paragraphs: Sequence[str]) -> Iterator[str]:
        what, rocketmq = _without_rocketmq(paragraphs[0])
        if rocketmq:
            yield f"RocketMQ: {rocketmq['code']}, `{rocketmq['name']}`" + (
                f", since{rocketmq['version']}" if rocketmq["version"] else ""
            )
        errors = ""
        for paragraph in (what, *paragraphs[1:]):
            rest, found, named = f" {paragraph}".partition(" Errors: ")
            errors = named if found else errors
            if rest.strip():
                yield self._prose(rest.strip())
        request, answer = (self._link(*_split(name)) for name in (call.input_type, call.output_type))
        streams = " (a stream)" if call.client_streaming else "", " (a stream)" if call.server_streaming else ""
        yield f"- Request: {request}{streams[0]}\n- Answer: {answer}{streams[1]}\n- Errors: {self._prose(errors)}"

    def _types(self, names: set[str] | None = None) -> Iterator[str]:
        """The sections of the messages and enums of the present file, of all or of those that are named."""
        comments = Comments(self._file)
        for index, message in enumerate(self._file.message_type):
            if names is None or message.name in names:
                yield from self._message(message, comments, (_FILE_MESSAGE, index))
        for index, enum in enumerate(self._file.enum_type):
            if names is None or enum.name in names:
                yield from self._enum(enum, comments, (_FILE_ENUM, index), enum.name)

    def _message(self, message: DescriptorProto, comments: Comments, path: tuple[int, ...]) -> Iterator[str]:
        yield f"### {message.name}"
        yield from (self._prose(paragraph, own=message.name) for paragraph in comments.paragraphs(*path))
        rows = []
        for index, field in enumerate(message.field):
            meaning = comments.line(*path, _MESSAGE_FIELD, index)
            kind, presence = self._field_type(message, field), _presence(message, field)
            rows.append((f"`{field.name}`", kind, presence, self._prose(meaning, own=message.name)))
        if rows:
            yield table(("Field", "Type", "Presence", "Meaning"), rows)
        for index, oneof in enumerate(message.oneof_decl):
            if comment := comments.line(*path, _MESSAGE_ONEOF, index):  # the oneof of an optional field has none
                yield f"One of `{oneof.name}`: {self._prose(comment[0].lower() + comment[1:])}"
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, comments, (*path, _MESSAGE_ENUM, index), f"{message.name}.{enum.name}")

    def _enum(self, enum: EnumDescriptorProto, comments: Comments, path: tuple[int, ...], name: str) -> Iterator[str]:
        yield f"### {name}"
        yield from (self._prose(paragraph, own=name) for paragraph in comments.paragraphs(*path))
        rows = (
            (f"`{value.name}`", str(value.number), self._prose(comments.line(*path, _ENUM_VALUE, index)))
            for index, value in enumerate(enum.value)
        )
        yield table(("Value", "Number", "Meaning"), rows)

    def _reasons(self, heading: str) -> Iterator[str]:
        yield f"# {heading}"
        yield from (self._prose(paragraph) for paragraph in Comments(self._file).paragraphs(_FILE_ENUM, 0))
        yield "[Errors](../grpc_conventions.md#errors) says what to do after each code."
        calls = list(self._errors_of_calls())
        _, _, of_any_call = Comments(self._file).line(_FILE_ENUM, 0).partition("Any call may return ")
        for reason in error_reasons(self._file):
            yield f"## {reason.name}"
            yield f"`{reason.code}`: {self._prose(reason.meaning)}"
            if reason.metadata:
                yield f"Metadata: {_keys(reason.metadata)}."
            named = re.compile(rf"\b{reason.name}\b")
            raised = ["any call"] if named.search(of_any_call) else [link for link, text in calls if named.search(text)]
            yield f"Raised by {', '.join(raised)}."

    def _errors_of_calls(self) -> Iterator[tuple[str, str]]:
        """A link to each call of the package's services, and what its comment says about errors."""
        for name in SERVICE_FILES:
            file = self._files[name]
            for index, call in enumerate(file.service[0].method if file.package == self._file.package else ()):
                comment = Comments(file).line(_FILE_SERVICE, 0, _SERVICE_METHOD, index)
                yield self._link_to(page_of(name), call.name), comment.partition("Errors: ")[2]

    def _rocketmq_requests(self) -> Iterator[str]:
        yield "# RocketMQ's requests and codes"
        yield (
            "For authors of clients who know RocketMQ: which requests a name server takes over RocketMQ's protocol, "
            "and which gRPC call does the same. Agents serve the calls of BrokerAgentService, TopicConfigService and "
            "ClientService. [Differences from RocketMQ](../deviations.md) has the differences in behaviour."
        )
        rows: dict[int, list[str]] = {}
        for name in SERVICE_FILES:
            (service,), comments = self._files[name].service, Comments(self._files[name])
            for index, call in enumerate(service.method):
                link = f"{service.name}, {self._link_to(page_of(name), call.name)}"
                _, named = _without_rocketmq(comments.paragraphs(_FILE_SERVICE, 0, _SERVICE_METHOD, index)[0])
                if named:
                    rows[int(named["code"])] = [named["code"], f"`{named['name']}`", "", link]
                for code in _LISTED_BY.get((service.name, call.name), ()):
                    rows[code] = [str(code.value), f"`{code.name}`", "", link]
        for code in RequestCode:
            rows[code][2] = "yes"
        yield table(("Code", "RocketMQ", "RocketMQ's protocol", "gRPC"), (row for _, row in sorted(rows.items())))
        yield "## Response codes"
        yield (
            "All other error reasons have code 1, `SYSTEM_ERROR`. A request that the table above does not list gets "
            "code 3. While a name server shuts down, it answers with 1500, `GO_AWAY`."
        )
        codes = (
            (str(answer.rocketmq.value), f"`{answer.rocketmq.name}`", self._link_to(page_of(REASONS_FILE), reason))
            for reason, answer in ERROR_CODES.items()
            if answer.rocketmq is not ResponseCode.SYSTEM_ERROR
        )
        yield table(("Code", "RocketMQ", "Error reason"), codes)

    def _field_type(self, message: DescriptorProto, field: FieldDescriptorProto) -> str:
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = (self._field_type(nested, part) for part in nested.field)
                return f"map of {key} to {value}"
        single = self._link(*_split(field.type_name)) if field.type in _REFERENCES else _SCALAR_TYPES[field.type]
        return f"list of {single}" if field.label == FieldDescriptorProto.LABEL_REPEATED else single

    def _link(self, package: str, name: str) -> str:
        return self._link_to(self._pages[package, name], name)

    def _link_to(self, page: str, heading: str) -> str:
        own = page == self._page
        return f"[{heading}]({'' if own else posixpath.basename(page)}#{_anchor(heading)})"

    def _prose(self, text: str, own: str = "") -> str:
        """A comment as Markdown: names as code, names of messages as links, except in their own section."""

        def marked(match: re.Match[str]) -> str:
            word = match[0].strip('"')
            if word != own:
                for package in (self._file.package, PACKAGE):
                    if (package, word) in self._pages:
                        return self._link(package, word)
            return f"`{word}`"

        return _CODE_WORD.sub(marked, text)


def page_of(file: str) -> str:
    """The page of a file of the contract, by its path in the repository."""
    package, name = file.removesuffix(".proto").split("/v1/")
    agents = "agent_" if package == "broker_agent_api" and name == "error_reason" else ""
    return f"{FOLDER}/{agents}{name}.md"


def site_pages() -> dict[str, str]:
    """The text of each page, by the path that it would have in the repository."""
    return dict(Reference().pages()) | {PROGRAMS_PAGE: programs()}


def sources() -> dict[str, str]:
    """The page that shows a file or folder of the repository on the site, by that file's path."""
    files = (*SERVICE_FILES, SHARED_FILE, REASONS_FILE, AGENT_REASONS_FILE)
    examples = {f"examples/{file}": PROGRAMS_PAGE for file in ("watch", *(file for file, _ in _PROGRAMS.values()))}
    return {f"protos/{file}": page_of(file) for file in files} | examples | {"namesrv/remoting/wire.py": ROCKETMQ_PAGE}


def programs() -> str:
    """The page with a watch in each language."""
    introduction = (
        "A watch of routes in each language, with TLS, tokens and keepalive, and a service config for lookups. "
        "[Clients in any language](../grpc.md) explains them."
    )
    parts = ["# Watch programs", introduction]
    for heading, (file, word) in _PROGRAMS.items():
        code = (ROOT / "examples" / file).read_text(encoding="utf-8")
        parts.append(f"## {heading}\n\n```{word}\n{code.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _without_rocketmq(text: str) -> tuple[str, re.Match[str] | None]:
    """A call's first paragraph without RocketMQ's name and code for it, and these."""
    found = _ROCKETMQ_CALL.search(text)
    if found is None:
        return text, None
    word = f" ({found['word']})" if found["word"] else ""
    return text[: found.start()] + word + text[found.end() :], found


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _keys(metadata: dict[str, str]) -> str:
    return ", ".join(f"`{key}` ({condition})" if condition else f"`{key}`" for key, condition in metadata.items())


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


def _anchor(heading: str) -> str:
    """The fragment by which a heading is linked, as GitHub and most renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _split(type_name: str) -> tuple[str, str]:
    """Package and name of a type, of its full name such as ``.namesrv_api.v1.GroupTopics``."""
    match = re.fullmatch(r"\.(?P<package>\w+\.v\d+)\.(?P<name>.+)", type_name)
    assert match is not None, type_name
    return match["package"], match["name"]
