"""Whatever happens, and whenever a watch reads: at each bookmark it holds exactly what lookups give, and it was told
why each broker left. What it recorded keeps the promises of a watch."""

from __future__ import annotations

from tests.properties import machine_test
from tests.unit.namesrv.watch_machine import WatchesAgainstLookups

TestWatchesAgainstLookups = machine_test(WatchesAgainstLookups, 100, steps=40)
