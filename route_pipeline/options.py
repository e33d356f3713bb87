"""The options of the data source ``namesrv``, checked when Spark asks for the schema, at ``load()``.

Imports neither Arrow nor gRPC: Spark's first Python process, which makes the source, would wait for them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from groundwork.certificates import MAX_TOKEN_LENGTH, CertificateError, read_authorities, read_key_pair, read_token
from groundwork.endpoints import Endpoint, parse_endpoints
from route_pipeline.schemas import CHANGES, TABLES, TOPIC_QUEUES, columns_of

if TYPE_CHECKING:
    import pyarrow as pa


# A filter of rows: the options ``topics`` and ``clusters``, and what Spark pushes down.

TOPIC, CLUSTER, BROKER = "topic", "cluster_name", "broker_name"
"""Columns that a filter may be on."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows by topic and cluster. Rows that are of no topic, as a broker's, are chosen by cluster alone."""

    topics: frozenset[str] = frozenset()
    """Wanted topics by name."""
    topic_prefixes: tuple[str, ...] = ()
    """Wanted topics by the beginning of their name. Without names and prefixes, all topics are wanted."""
    clusters: frozenset[str] = frozenset()
    """Wanted clusters; all if there are none."""

    brokers: frozenset[str] = frozenset()
    """Wanted broker groups; all if there are none."""

    @classmethod
    def of(cls, topics: tuple[str, ...], clusters: tuple[str, ...]) -> RowFilter:
        """A filter from names. Topic names may end with ``*``."""
        return cls(
            frozenset(topic for topic in topics if not topic.endswith("*")),
            tuple(topic[:-1] for topic in topics if topic.endswith("*")),
            frozenset(clusters),
        )

    def wants_topic(self, topic: str) -> bool:
        if not self.topics and not self.topic_prefixes:
            return True
        return topic in self.topics or topic.startswith(self.topic_prefixes)

    def wants_group(self, cluster_name: str, broker_name: str | None) -> bool:
        """Whether rows of a broker group of a cluster are wanted. None: of a row that has no group."""
        if self.clusters and cluster_name not in self.clusters:
            return False
        return not self.brokers or broker_name is None or broker_name in self.brokers

    def narrowed(self, column: str, values: Iterable[str]) -> RowFilter:
        """The filter of rows that have one of some values in a column, too.

        An unknown column, or values that it wants none of, leave the filter as it is: Spark checks every row again.
        """
        if column == TOPIC:
            topics = frozenset(value for value in values if self.wants_topic(value))
            return replace(self, topics=topics, topic_prefixes=()) if topics else self
        known = {CLUSTER: self.clusters, BROKER: self.brokers}.get(column)
        if known is None:
            return self
        wanted = frozenset(value for value in values if not known or value in known)
        if not wanted:
            return self
        return replace(self, clusters=wanted) if column == CLUSTER else replace(self, brokers=wanted)

    def beginning(self, column: str, prefix: str) -> RowFilter:
        """The filter of rows whose topic begins with a prefix, too, if none was asked for by now."""
        if column != TOPIC or not prefix or self.topics or self.topic_prefixes:
            return self
        return replace(self, topic_prefixes=(prefix,))


EVERYTHING = RowFilter()
"""All rows."""


# How to connect to a name server: records that travel to Spark's executors.
#
# No gRPC is imported here: to check options must not wait for it.

MIN_PIN_SECONDS = 1
MAX_PIN_SECONDS = 3600
"""Longest lease of a pin that a name server gives."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for a name server, in seconds."""

    connect: float = 5.0
    """For one attempt to connect; a name server is a network hop away."""
    total: float = 300.0
    """For a whole stream, with what the reader does in between; ten million rows take less than a minute."""

    @property
    def call(self) -> float:
        """For a small call: a few attempts to connect, and the pauses between them."""
        return min(self.total, 10 + 4 * self.connect)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to prove the name server, and oneself to it."""

    ca: bytes | None = None
    """PEM certificates to trust. None: those of the machine."""
    certificate: bytes | None = None
    """PEM certificate chain of this client, or None."""
    key: bytes | None = field(default=None, repr=False)
    """PEM private key of it."""


@dataclass(frozen=True, slots=True)
class Connecting:
    """How to connect to every name server of a read. Travels to Spark's executors, certificates and all."""

    timeouts: Timeouts = Timeouts()
    tls: Tls | None = None
    """None: plain text."""
    token: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer ...`` with each call. None: nothing is sent."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


# The options of the data source ``namesrv``, checked when Spark asks for the schema: at ``load()``.

FORMAT = "namesrv"
"""Name of the data source in Spark."""

MAX_TIMEOUT_SECONDS = 86_400.0
"""Longest timeout: a day. What takes longer hangs."""

DEFAULT_PIN_SECONDS = 60
"""Name servers extend a pin while it is read from. So this is how long a plan may wait for its tasks, and how long a
DataFrame can be read again."""

MAX_REVISIONS = 2**62
"""Largest revision that can be asked for."""

FAIL, RESYNC, CONTINUE = "fail", "resync", "continue"
WAIT, READ = "wait", "read"

_OPTIONS = (
    "endpoints",
    "table",
    "topics",
    "clusters",
    "columns",
    "pins",
    "pinSeconds",
    "onLost",
    "onCold",
    "onCompacted",
    "maxRevisionsPerTrigger",
    "tls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "token",
    "tokenFile",
    "connectTimeoutSeconds",
    "timeoutSeconds",
)
_SEPARATOR = re.compile(r"[\s,;]+")


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read: the options, checked."""

    endpoints: tuple[Endpoint, ...]
    """Name servers to read from."""
    table: str
    """One of :data:`route_pipeline.schemas.TABLES`."""
    connecting: Connecting
    """How to connect to them."""
    wanted: RowFilter
    """Which rows."""
    columns: tuple[str, ...]
    """Which columns, in the table's order. Empty: all."""
    pin_seconds: int
    """How long snapshots stay readable unless they are read from."""
    pins: Mapping[Endpoint, str]
    """Snapshots that were pinned before, by name server. Empty: each plan pins anew."""
    fail_on_lost: bool
    """Whether a name server that does not answer fails the read although others answer."""
    on_cold: str
    """What to do about a name server that is warming up: ``fail``, ``wait`` until it is warm, or ``read`` it anyway."""
    resync_when_compacted: bool
    """Streams: whether to take a snapshot where changes were missed."""
    max_revisions: int | None
    """Streams: most revisions of one name server in one batch, or None."""

    may_be_null: frozenset[str] = frozenset()
    """Columns that a schema of the user's declares nullable, though they are never null."""

    def selected(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that were asked for, in their order, as Spark expects them."""
        if not self.columns:
            return rows
        rows = rows.select(self.columns)
        if not self.may_be_null:
            return rows
        schema = rows.schema
        for number, name in enumerate(schema.names):
            if name in self.may_be_null:
                schema = schema.set(number, schema.field(number).with_nullable(True))
        return rows.from_arrays(rows.columns, schema=schema)

    def with_schema(self, schema: Sequence[tuple[str, str, bool]]) -> ReadRequest:
        """The request for the columns of a schema, which may leave some out and have them in another order.

        Args:
            schema: Of each column the name, Spark's word for its type, and whether it may be null.

        Raises:
            ValueError: It has a column that the table does not have, or has with another type.
        """
        there = {column.name: column for column in columns_of(self.table)}
        relaxed = set()
        for name, kind, nullable in schema:
            column = there.get(name)
            if column is None:
                hint = _did_you_mean(name, there)
                raise ValueError(f"the schema has {name!r:.80}, which is no column of table {self.table}{hint}")
            declared = column.type.lower().replace(" ", "")
            if kind != declared:
                raise ValueError(
                    f"the schema has {name} as {kind}, but in table {self.table} it is {declared}: "
                    "read it so, and cast it"
                )
            if column.nullable and not nullable:
                raise ValueError(f"the schema has {name} as not null, but in table {self.table} it may be null")
            if nullable and not column.nullable:
                relaxed.add(name)
        names = tuple(name for name, _, _ in schema)
        if not names or (names == tuple(there) and not relaxed):
            return self
        return replace(self, columns=names, may_be_null=frozenset(relaxed))

    @classmethod
    def of_options(cls, options: Mapping[str, str], *, streaming: bool = False) -> ReadRequest:
        """Checks the options of a read.

        Args:
            options: Spark's options. They are asked by ``get`` only: Spark's mapping ignores case, but lists its
                keys in lower case.
            streaming: Whether it is a stream, where a lost name server does not stop the others by default.

        Raises:
            ValueError: An option is unknown or missing, or its value breaks its rule; the message names it.
        """
        _check_names(options)
        options = {name.lower(): value for name, value in options.items()}
        endpoints = _endpoints(options)
        pin_seconds = _whole_number(options, "pinSeconds", MIN_PIN_SECONDS, MAX_PIN_SECONDS)
        on_lost = _one_of(options, "onLost", (CONTINUE, FAIL) if streaming else (FAIL, CONTINUE))
        timeouts = Timeouts(
            connect=_seconds(options, "connectTimeoutSeconds", Timeouts().connect),
            total=_seconds(options, "timeoutSeconds", Timeouts().total),
        )
        tls = _tls(options)
        table = _one_of(options, "table", (TOPIC_QUEUES, *(name for name in TABLES if name != TOPIC_QUEUES)))
        request = cls(
            endpoints=endpoints,
            table=table,
            connecting=Connecting(timeouts, tls, _token(options, tls=tls is not None)),
            wanted=RowFilter.of(_names(options, "topics"), _names(options, "clusters")),
            columns=_columns(options, table),
            pin_seconds=DEFAULT_PIN_SECONDS if pin_seconds is None else pin_seconds,
            pins=_pins(options, endpoints),
            fail_on_lost=on_lost == FAIL,
            on_cold=_one_of(options, "onCold", (WAIT, FAIL, READ) if streaming else (FAIL, WAIT, READ)),
            resync_when_compacted=_one_of(options, "onCompacted", (FAIL, RESYNC)) == RESYNC,
            max_revisions=_whole_number(options, "maxRevisionsPerTrigger", 1, MAX_REVISIONS),
        )
        if request.pins and request.table == CHANGES:
            raise ValueError(f"option 'pins' is for tables of a snapshot; table {CHANGES} has none")
        return request


def _check_names(options: Mapping[str, str]) -> None:
    known = {option.lower(): option for option in _OPTIONS}
    for key in sorted(options):
        if key.lower() in known:
            continue
        near = difflib.get_close_matches(key.lower(), known, n=1)
        hint = f": did you mean {known[near[0]]!r}?" if near else f", which has {', '.join(_OPTIONS)}"
        raise ValueError(f"option {key!r:.80} is unknown to {FORMAT}{hint}")


def _endpoints(options: Mapping[str, str]) -> tuple[Endpoint, ...]:
    endpoints = options.get("endpoints")
    if endpoints is None:
        raise ValueError("option 'endpoints' is missing: write host:port,host:port")
    try:
        return parse_endpoints(endpoints)
    except ValueError as error:
        raise ValueError(f"option 'endpoints': {error}") from error


def _pins(options: Mapping[str, str], endpoints: tuple[Endpoint, ...]) -> dict[Endpoint, str]:
    """Pins as ``host:port=id,host:port=id``, one for each name server."""
    pins: dict[Endpoint, str] = {}
    for element in _names(options, "pins"):
        address, equals, pin_id = element.partition("=")
        if not equals or not pin_id:
            raise ValueError(f"option 'pins' has {element!r}, which is not host:port=id")
        try:
            pins[Endpoint.parse(address)] = pin_id
        except ValueError as error:
            raise ValueError(f"option 'pins': {error}") from error
    if pins and set(pins) != set(endpoints):
        raise ValueError("option 'pins' does not name the same addresses as option 'endpoints'")
    return pins


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = options.get(name.lower())
    if text is None:
        return ()
    names = tuple(element for element in _SEPARATOR.split(text) if element)
    if not names:
        raise ValueError(f"option {name!r} is empty: leave it out for all")
    return names


def _columns(options: Mapping[str, str], table: str) -> tuple[str, ...]:
    wanted = _names(options, "columns")
    there = [column.name for column in columns_of(table)]
    for name in wanted:
        if name not in there:
            hint = _did_you_mean(name, there)
            raise ValueError(f"option 'columns' has {name!r:.80}, which is no column of table {table}{hint}")
    return tuple(name for name in there if name in wanted)


def _did_you_mean(name: str, there: Collection[str]) -> str:
    near = difflib.get_close_matches(name, there, n=1)
    return f": did you mean {near[0]!r}?" if near else f", which has {', '.join(there)}"


def _one_of(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """A choice; the first is the default."""
    value = options.get(name.lower(), choices[0])
    if value in choices:
        return value
    near = difflib.get_close_matches(value, choices, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"option {name!r} is {value!r}, not one of {', '.join(choices)}{hint}")


def _whole_number(options: Mapping[str, str], name: str, lowest: int, highest: int) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    number = int(text) if re.fullmatch(r"\d{1,19}", text) else -1
    if not lowest <= number <= highest:
        raise ValueError(f"option {name!r} is {text!r}, not a whole number from {lowest} to {highest}")
    return number


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    # A NaN is not within any bounds.
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise ValueError(
            f"option {name!r} is {text!r}, not a number of seconds above 0 and up to {MAX_TIMEOUT_SECONDS:g}"
        )
    return seconds


def _tls(options: Mapping[str, str]) -> Tls | None:
    """The files are read here, on the driver: executors need not have them."""
    on = _one_of(options, "tls", ("false", "true")) == "true"
    ca, certificate, key = (options.get(name.lower()) for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile"))
    if not on:
        if ca or certificate or key:
            raise ValueError("option 'tls' is not 'true', but one of tlsCaFile, tlsCertFile, tlsKeyFile is given")
        return None
    if (certificate is None) != (key is None):
        raise ValueError("options 'tlsCertFile' and 'tlsKeyFile' go together: one of them is missing")
    with _naming("option 'tlsCaFile'"):
        authorities = None if ca is None else read_authorities(Path(ca))
    if certificate is None or key is None:
        return Tls(authorities)
    with _naming("options 'tlsCertFile' and 'tlsKeyFile'"):
        pair = read_key_pair(Path(certificate), Path(key))
    return Tls(authorities, pair.certificate, pair.key)


def _token(options: Mapping[str, str], *, tls: bool) -> str | None:
    token, path = options.get("token"), options.get("tokenfile")
    if token is not None and path is not None:
        raise ValueError("options 'token' and 'tokenFile' are both given: give one of them")
    if path is not None:
        with _naming("option 'tokenFile'"):
            token = read_token(Path(path))
    if token is not None and not re.fullmatch(rf"[!-~]{{1,{MAX_TOKEN_LENGTH}}}", token):
        raise ValueError(f"option 'token' is not 1 to {MAX_TOKEN_LENGTH} visible ASCII characters")
    if token is not None and not tls:
        raise ValueError("option 'token' or 'tokenFile' is given, but option 'tls' is not 'true': others could read it")
    return token


@contextmanager
def _naming(options: str) -> Iterator[None]:
    """Puts the options before what is wrong with their files."""
    try:
        yield
    except CertificateError as error:
        raise ValueError(f"{options}: {error}") from error
