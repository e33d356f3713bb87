"""The file with the addresses that groups claim, so that a restart does not give them away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from groundwork.files import replace_durably
from namesrv.core.address_claims import AddressClaim
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.storage.durable_file import DurableFile, read_model

ADDRESS_CLAIMS_FILE = "address_claims.json"
"""Name of the file. RocketMQ has no such file: there an address is for whoever registers it."""

_Number = Annotated[int, Field(ge=0, lt=2**63)]


class _Row(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: _Number
    since_millis: _Number
    ends_at_millis: _Number


class _Content(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    version: Annotated[int, Field(ge=1, le=1)]
    """Goes up with every change of the format."""
    claims: list[_Row]


class AddressClaimsFile(DurableFile[list[AddressClaim]]):
    """``address_claims.json`` and its copy in a folder. There are no claims if there never was a file."""

    def __init__(self, folder: Path, write: Callable[[Path, bytes], None] = replace_durably) -> None:
        super().__init__(folder / ADDRESS_CLAIMS_FILE, [], _decode, _encode, write)


def _encode(claims: list[AddressClaim]) -> bytes:
    rows = (
        _Row(
            cluster_name=claim.key.cluster_name,
            broker_addr=claim.key.broker_addr,
            broker_name=claim.broker.broker_name,
            broker_id=claim.broker_id,
            since_millis=claim.since_millis,
            ends_at_millis=claim.ends_at_millis,
        )
        for claim in claims
    )
    lines = ",\n".join(row.model_dump_json() for row in rows)  # one by one: no call keeps other threads from running
    return f'{{"version": 1, "claims": [\n{lines}\n]}}\n'.encode()


def _decode(content: bytes) -> list[AddressClaim]:
    rows = read_model(_Content, content, "address claims of version 1").claims
    return [
        AddressClaim(
            LiveKey(row.cluster_name, row.broker_addr),
            BrokerKey(row.cluster_name, row.broker_name),
            row.broker_id,
            row.since_millis,
            row.ends_at_millis,
        )
        for row in rows
    ]
