"""The file of address claims: what is written is what is read, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from namesrv.core.address_claims import AddressClaim, AddressClaims
from namesrv.core.model import BrokerKey, LiveKey
from namesrv.core.slices import run_sync
from namesrv.storage.address_claims_file import ADDRESS_CLAIMS_FILE, AddressClaimsFile
from namesrv.storage.data_dir import DataDirError
from tests.support.virtual_clock import VirtualClock

CLAIM = AddressClaim(LiveKey("c", "10.0.0.1:10911"), BrokerKey("c", "broker-a"), 2, 1_000, 2_000)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    assert AddressClaimsFile(tmp_path).load() == []
    AddressClaimsFile(tmp_path).save([CLAIM])
    assert AddressClaimsFile(tmp_path).load() == [CLAIM]


@pytest.mark.parametrize("content", ["", "{}", '{"version": 2, "claims": []}', '{"version": 1, "claims": [{}]}'])
def test_a_file_that_holds_something_else_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / ADDRESS_CLAIMS_FILE).write_text(content)
    with pytest.raises(DataDirError, match="does not hold address claims of version 1"):
        AddressClaimsFile(tmp_path).load()


def test_claims_of_the_file_whose_time_was_up_are_none(tmp_path: Path) -> None:
    clock = VirtualClock()
    AddressClaimsFile(tmp_path).save([CLAIM._replace(ends_at_millis=clock.wall_millis())])
    claims = AddressClaims(clock)
    claims.load(AddressClaimsFile(tmp_path).load(), 60.0)
    assert run_sync(claims.in_force()) == []
