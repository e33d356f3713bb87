"""The KV configuration in the log: after a minute and every ten, with values shortened."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from namesrv.app.upkeep import PRINT_SLICE, print_kv_config
from namesrv.core.changes import Cause
from namesrv.core.model import KvConfigTable
from tests.support.core_fleet import Fleet


def test_all_keys_are_logged_again_and_again_with_values_shortened(fleet: Fleet) -> None:
    entries = {"exact": "x" * 40, "long": "y" * 41, **{f"{number:03}": "" for number in range(PRINT_SLICE)}}
    fleet.routes.operator_changes.publish_kv_config(KvConfigTable.of({"ns": entries}), Cause("test"))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    with capture_logs() as logs, pytest.raises(asyncio.CancelledError):
        asyncio.run(print_kv_config(fleet.state, sleep))
    assert [line["keys"] for line in logs if line["event"] == "kv_config"] == [PRINT_SLICE + 2] * 2
    items = [(line["key"], line["value"]) for line in logs if line["event"] == "kv_config_item"]
    assert len(items) == 2 * (PRINT_SLICE + 2)
    assert {("exact", "x" * 40), ("long", "y" * 40 + "...")} < set(items)
    assert pauses == [60.0, 0, 600.0, 0, 600.0]
