"""The reader of changes between two revisions of one name server, or of one shard of them: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from namesrv_api.v1 import route_service_pb2

from groundwork.endpoints import Endpoint
from route_pipeline.source.name_server.connecting import Connecting
from route_pipeline.source.name_server.connection import connect
from route_pipeline.source.name_server.snapshots import WHOLE, ShardOf

Response = route_service_pb2.StreamRouteChangesResponse

_HINTS = {
    "REVISION_COMPACTED": "changes were missed: start again from a snapshot, as the option onCompacted=resync does",
    "EPOCH_CHANGED": "the name server was restarted: load() again, or restart the query, which then takes a snapshot",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Changes of one name server that follow one another."""

    epoch: str
    """Its process lifetime."""
    after: int
    """The changes after this revision ..."""
    up_to: int
    """... up to and with this one."""


def read_changes(endpoint: Endpoint, connecting: Connecting, span: Span, shard: ShardOf = WHOLE) -> Iterator[Response]:
    """Yields messages with changes, by ascending revision; they are all only if this ends without an error.

    Raises:
        NamesrvError: The name server cannot be reached, refuses, sends a revision that was not asked for, or breaks
            off before it has reached the last one.
    """
    request = route_service_pb2.StreamRouteChangesRequest(
        after=route_service_pb2.ResumePoint(epoch=span.epoch, revision=span.after), up_to_revision=span.up_to
    )
    if shard != WHOLE:
        request.shard.CopyFrom(shard.message())
    with connect(endpoint, connecting) as connection:
        revision = span.after
        for response in connection.stream("StreamRouteChanges", request, _HINTS):
            if response.header.epoch != span.epoch or not revision <= response.header.revision <= span.up_to:
                raise connection.error(
                    f"was asked for changes of epoch {span.epoch} after {revision} up to {span.up_to}, "
                    f"but sent epoch {response.header.epoch}, revision {response.header.revision}"
                )
            revision = response.header.revision
            if not response.HasField("changes"):
                if revision != span.up_to:
                    raise connection.error(f"ended the changes at revision {revision}, not {span.up_to}")
                return
            yield response
        raise connection.error(f"ended the changes before it reached revision {span.up_to}")
