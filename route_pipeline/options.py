"""The options of the data source and of the ingest, checked before anything is read: at ``load()``.

Imports neither Arrow nor gRPC: Spark's first Python process, which makes the source, would wait for them. It does wait
for pydantic, 0.2 s.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

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

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows by topic and cluster. Rows that are of no topic, as a broker's, are chosen by cluster alone."""

    topics: frozenset[str] = frozenset()  # wanted topics by name
    topic_prefixes: tuple[str, ...] = ()
    """Wanted topics by the beginning of their name. Without names and prefixes, all topics are wanted."""
    clusters: frozenset[str] = frozenset()  # wanted clusters; all if there are none

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

    connect_seconds: float = 5.0  # for one attempt to connect; a name server is a network hop away
    total_seconds: float = 300.0
    """For a whole stream, with what the reader does in between; ten million rows take less than a minute."""
    tls: bool = False
    authorities: bytes | None = None  # PEM certificates to trust. None: those of the machine
    certificate: bytes | None = None  # PEM certificate chain of this client, or None
    key: bytes | None = field(default=None, repr=False)  # PEM private key of it
    token: str | None = field(default=None, repr=False)
    """Sent as ``authorization: Bearer ...`` with each call. None: nothing is sent."""


_SEPARATOR = re.compile(r"[\s,;]+")


def _split(text: str) -> tuple[str, ...]:
    names = tuple(element for element in _SEPARATOR.split(text) if element)
    if not names:
        raise ValueError("empty: leave it out for all")
    return names


def _check_token(token: str) -> str:
    """Not by a pattern: pydantic would repeat the token in its error."""
    if not re.fullmatch(rf"[!-~]{{1,{MAX_TOKEN_LENGTH}}}", token):
        raise ValueError(f"not 1 to {MAX_TOKEN_LENGTH} visible ASCII characters")
    return token


_Endpoints = Annotated[tuple[Endpoint, ...], PlainValidator(parse_endpoints)]
_Names = Annotated[tuple[str, ...], PlainValidator(_split)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]

BATCH: Mapping[str, str] = {}
STREAMING = {"onLost": "continue", "onCold": "wait"}
"""The defaults of a stream that differ. A name server that is lost or cold stops no other."""


class Options(BaseModel):
    """The options of the data source and of the ingest. Their names for users are in camel case."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    endpoints: _Endpoints  # name servers as host:port,host:port
    table: Literal["topic_queues", "brokers", "clusters", "changes"] = "topic_queues"
    topics: _Names = ()  # names, or prefixes with a final * (default: all)
    clusters: _Names = ()  # default: all
    # How long unread snapshots are kept. Name servers extend a pin while it is read from. So this is how long a plan
    # may wait for its tasks, and how long a DataFrame can be read again.
    pin_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    on_lost: Literal["fail", "continue"] = "fail"  # if a name server does not answer although others do
    on_cold: Literal["fail", "wait", "read"] = "fail"  # if a name server is warming up
    on_compacted: Literal["fail", "resync"] = "fail"  # streams, if changes were missed
    tls: bool = False
    tls_ca_file: Path | None = None  # PEM (default: the machine's authorities)
    tls_cert_file: Path | None = None  # PEM, of this client
    tls_key_file: Path | None = None  # PEM, of this client
    token: Annotated[str, AfterValidator(_check_token)] | None = Field(default=None, repr=False)
    token_file: Path | None = None
    connect_timeout_seconds: _Seconds = Connecting().connect_seconds
    timeout_seconds: _Seconds = Connecting().total_seconds

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
            known = [to_camel(field) for field in cls.model_fields]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f", which has {', '.join(known)}"
            return f"option {name!r:.80} is unknown to namesrv{hint}"
        if item["type"] == "missing":
            return f"option {name!r} is missing"
        if item["type"] == "value_error":
            return f"option {name!r}: {message}"
        return f"option {name!r} is {item['input']!r:.80}: {message}"

    @model_validator(mode="after")
    def _agree(self) -> Self:
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
        named = "option 'tlsCaFile'"
        try:
            if self.tls_ca_file:
                authorities = read_authorities(self.tls_ca_file)
            named = "options 'tlsCertFile' and 'tlsKeyFile'"
            if self.tls_cert_file and self.tls_key_file:
                pair = read_key_pair(self.tls_cert_file, self.tls_key_file)
            named = "option 'tokenFile'"
            if self.token_file:
                token = read_token(self.token_file)
        except CertificateError as error:
            raise ValueError(f"{named}: {error}") from error
        return Connecting(self.connect_timeout_seconds, self.timeout_seconds, self.tls, authorities, *pair, token)


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read that options ask for. Travels to Spark's executors, which need none of the options' files."""

    options: Options
    connecting: Connecting

    @classmethod
    def of(cls, given: Mapping[str, str], defaults: Mapping[str, str] = BATCH) -> ReadRequest:
        """A read of what options name. Reads their files. Raises ValueError."""
        options = Options.of(given, defaults)
        return cls(options, options.connecting())

    @property
    def wanted(self) -> RowFilter:
        return RowFilter.of(self.options.topics, self.options.clusters)
