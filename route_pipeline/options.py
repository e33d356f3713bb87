"""The options of the data source, the ingest and the sink, checked before anything is read: at ``load()``.

Imports neither Arrow nor gRPC: Spark's first Python process, which makes the source, would wait for them. It does wait
for pydantic, 0.2 s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from namesrv_common.endpoints import Endpoint, parse_endpoints
from namesrv_common.tls.certificates import (
    MAX_TOKEN_LENGTH,
    CertificateError,
    read_authorities,
    read_key_pair,
    read_token,
)
from route_pipeline.schemas import CHANGES, columns_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows by topic and cluster. Rows that are of no topic, as a broker's, are chosen by cluster alone."""

    topics: frozenset[str] = frozenset()
    """Wanted topics by name."""
    topic_prefixes: tuple[str, ...] = ()
    """Wanted topics by the beginning of their name. Without names and prefixes, all topics are wanted."""
    clusters: frozenset[str] = frozenset()
    """Wanted clusters; all if there are none."""

    @classmethod
    def of(cls, topics: tuple[str, ...], clusters: tuple[str, ...]) -> RowFilter:
        """A filter from names. Topic names may end with ``*``."""
        prefixes = tuple(topic[:-1] for topic in topics if topic.endswith("*"))
        return cls(frozenset(topic for topic in topics if not topic.endswith("*")), prefixes, frozenset(clusters))

    def wants_topic(self, topic: str) -> bool:
        if not self.topics and not self.topic_prefixes:
            return True
        return topic in self.topics or topic.startswith(self.topic_prefixes)

    def wants_cluster(self, cluster_name: str) -> bool:
        return not self.clusters or cluster_name in self.clusters


EVERYTHING = RowFilter()
"""All rows."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """How to connect to every name server of a read. Travels to Spark's executors, certificates and all."""

    connect_seconds: float = 5.0
    """For one attempt to connect; a name server is a network hop away."""
    total_seconds: float = 300.0
    """For a whole stream, with what the reader does in between; ten million rows take less than a minute."""
    tls: bool = False
    authorities: bytes | None = None
    """PEM certificates to trust. None: those of the machine."""
    certificate: bytes | None = None
    """PEM certificate chain of this client, or None."""
    key: bytes | None = field(default=None, repr=False)
    """PEM private key of it."""
    token: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer ...`` with each call. None: nothing is sent."""


FORMAT, LOG_FORMAT = "namesrv", "namesrv_log"
"""Names of the data source and of the sink in Spark."""

MAX_TIMEOUT_SECONDS = 86_400.0
"""Longest timeout: a day. What takes longer hangs."""

OnCold = Literal["fail", "wait", "read"]
"""What to do about a name server that is warming up: fail, wait until it is warm, or read it anyway."""

_SEPARATOR = re.compile(r"[\s,;]+")


def _split(text: str) -> tuple[str, ...]:
    names = tuple(element for element in _SEPARATOR.split(text) if element)
    if not names:
        raise ValueError("empty: leave it out for all")
    return names


def _parse_pins(text: str) -> dict[Endpoint, str]:
    pins = {}
    for element in _split(text):
        address, _, pin_id = element.partition("=")
        if not pin_id:
            raise ValueError(f"{element!r:.80} is not host:port=id")
        pins[Endpoint.parse(address)] = pin_id
    return pins


def _check_token(token: str) -> str:
    """Not by a pattern: pydantic would repeat the token in its error."""
    if not re.fullmatch(rf"[!-~]{{1,{MAX_TOKEN_LENGTH}}}", token):
        raise ValueError(f"not 1 to {MAX_TOKEN_LENGTH} visible ASCII characters")
    return token


_Endpoints = Annotated[tuple[Endpoint, ...], PlainValidator(parse_endpoints)]
_Names = Annotated[tuple[str, ...], PlainValidator(_split)]
_Pins = Annotated[Mapping[Endpoint, str], PlainValidator(_parse_pins)]
_Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_SECONDS, allow_inf_nan=False)]

BATCH: Mapping[str, str] = {}
STREAMING = {"onLost": "continue", "onCold": "wait"}
"""The defaults of a stream that differ. A name server that is lost or cold stops no other."""


class _Given(BaseModel):
    """Options that a user gives, parsed. Their names in Spark are in camel case."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)
    format: ClassVar[str]

    @classmethod
    def of(cls, given: Mapping[str, str], defaults: Mapping[str, str] = BATCH) -> Self:
        """Parses options, whatever the case of their names.

        Args:
            defaults: ``BATCH`` or ``STREAMING``.

        Raises:
            ValueError: Options are unknown, missing or break their rule. The text is one line, and names them.
        """
        names = {to_camel(name).lower(): to_camel(name) for name in cls.model_fields}
        values = {names.get(name.lower(), name): text for name, text in given.items()}
        try:
            return cls.model_validate({**defaults, **values})
        except ValidationError as error:
            raise ValueError("; ".join(map(cls._problem, error.errors()))) from None  # its own text has the token

    @classmethod
    def _problem(cls, item: ErrorDetails) -> str:
        """What is wrong with an option, in words that name it."""
        message = item["msg"].removeprefix("Value error, ")
        if not item["loc"]:  # it is about several options, which its text names
            return message
        name = str(item["loc"][0])
        if item["type"] == "extra_forbidden":
            hint = _did_you_mean(name, [to_camel(known) for known in cls.model_fields])
            return f"option {name!r:.80} is unknown to {cls.format}{hint}"
        if item["type"] == "missing":
            return f"option {name!r} is missing"
        if item["type"] == "value_error":
            return f"option {name!r}: {message}"
        return f"option {name!r} is {item['input']!r:.80}: {message}"


class Options(_Given):
    """The options of the data source and of the ingest."""

    format = FORMAT

    endpoints: _Endpoints  # name servers as host:port,host:port
    table: Literal["topic_queues", "brokers", "clusters", "changes"] = "topic_queues"
    topics: _Names = ()  # names, or prefixes with a final * (default: all)
    clusters: _Names = ()  # default: all
    pins: _Pins = {}  # pinned snapshots as host:port=id,... (default: each plan pins anew)
    # How long unread snapshots are kept. Name servers extend a pin while it is read from. So this is how long a plan
    # may wait for its tasks, and how long a DataFrame can be read again.
    pin_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    on_lost: Literal["fail", "continue"] = "fail"  # if a name server does not answer although others do
    on_cold: OnCold = "fail"
    on_compacted: Literal["fail", "resync"] = "fail"  # streams, if changes were missed
    max_revisions_per_trigger: Annotated[int, Field(ge=1, le=2**62)] | None = None  # streams, of one name server
    tls: bool = False
    tls_ca_file: Path | None = None  # PEM (default: the machine's authorities)
    tls_cert_file: Path | None = None  # PEM, of this client
    tls_key_file: Path | None = None  # PEM, of this client
    token: Annotated[str, AfterValidator(_check_token)] | None = Field(default=None, repr=False)
    token_file: Path | None = None
    connect_timeout_seconds: _Seconds = Connecting().connect_seconds
    timeout_seconds: _Seconds = Connecting().total_seconds

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.pins and set(self.pins) != set(self.endpoints):
            raise ValueError("option 'pins' does not name the same addresses as option 'endpoints'")
        if self.pins and self.table == CHANGES:
            raise ValueError(f"option 'pins' is for tables of a snapshot; table {CHANGES} has none")
        if not self.tls and (self.tls_ca_file or self.tls_cert_file or self.tls_key_file):
            raise ValueError("option 'tls' is not 'true', but one of tlsCaFile, tlsCertFile, tlsKeyFile is given")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("options 'tlsCertFile' and 'tlsKeyFile' go together: one of them is missing")
        if self.token and self.token_file:
            raise ValueError("options 'token' and 'tokenFile' are both given: give one of them")
        if not self.tls and (self.token or self.token_file):
            raise ValueError("option 'token' or 'tokenFile' needs option 'tls' to be 'true': others could read it")
        return self

    def connecting(self) -> Connecting:
        """How to connect, with what the files hold now. Raises ValueError, with the options of a wrong file."""
        authorities, token = None, self.token
        pair: tuple[bytes | None, bytes | None] = (None, None)
        if self.tls_ca_file:
            with _naming("option 'tlsCaFile'"):
                authorities = read_authorities(self.tls_ca_file)
        if self.tls_cert_file and self.tls_key_file:
            with _naming("options 'tlsCertFile' and 'tlsKeyFile'"):
                pair = read_key_pair(self.tls_cert_file, self.tls_key_file)
        if self.token_file:
            with _naming("option 'tokenFile'"):
                token = read_token(self.token_file)
        return Connecting(self.connect_timeout_seconds, self.timeout_seconds, self.tls, authorities, *pair, token)


class SinkOptions(_Given):
    """The options of the sink. All others are of the store, which checks them."""

    model_config = ConfigDict(extra="allow")
    format = LOG_FORMAT

    path: str  # folder or URL of the route log
    checkpoint_location: str | None = None  # Spark's own

    @property
    def store(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _did_you_mean(name: str, there: Collection[str]) -> str:
    near = difflib.get_close_matches(name, there, n=1)
    return f": did you mean {near[0]!r}?" if near else f", which has {', '.join(there)}"


@contextmanager
def _naming(options: str) -> Iterator[None]:
    """Puts the options before what is wrong with their files."""
    try:
        yield
    except CertificateError as error:
        raise ValueError(f"{options}: {error}") from error


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read that options ask for. Travels to Spark's executors, which need none of the options' files."""

    options: Options
    connecting: Connecting
    columns: tuple[tuple[str, bool], ...] = ()
    """Which columns, in order, and whether their schema calls them nullable. Empty: all."""

    @classmethod
    def of(cls, given: Mapping[str, str], defaults: Mapping[str, str] = BATCH) -> ReadRequest:
        """A read of what options name. Reads their files. Raises ValueError."""
        options = Options.of(given, defaults)
        return cls(options, options.connecting())

    @property
    def wanted(self) -> RowFilter:
        return RowFilter.of(self.options.topics, self.options.clusters)

    def selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that were asked for, in their order, as Spark expects them."""
        if not self.columns:
            return rows
        rows = rows.select([name for name, _ in self.columns])
        schema = rows.schema
        for number, (_, nullable) in enumerate(self.columns):
            schema = schema.set(number, schema.field(number).with_nullable(nullable))
        return rows.from_arrays(rows.columns, schema=schema)

    def with_schema(self, schema: Sequence[tuple[str, str, bool]]) -> ReadRequest:
        """The request for the columns of a schema, which may leave some out and have them in another order.

        Args:
            schema: Of each column the name, Spark's word for its type, and whether it may be null.

        Raises:
            ValueError: It has a column that the table does not have, or has with another type.
        """
        table = self.options.table
        there = {column.name: column for column in columns_of(table)}
        for name, kind, nullable in schema:
            if name not in there:
                hint = _did_you_mean(name, there)
                raise ValueError(f"the schema has {name!r:.80}, which is no column of table {table}{hint}")
            declared = there[name].type.lower().replace(" ", "")
            if kind != declared:
                raise ValueError(
                    f"the schema has {name} as {kind}, but in table {table} it is {declared}: read it so, and cast it"
                )
            if there[name].nullable and not nullable:
                raise ValueError(f"the schema has {name} as not null, but in table {table} it may be null")
        return replace(self, columns=tuple((name, nullable) for name, _, nullable in schema))
