"""Whatever happens, and whenever a watch reads: at each bookmark it holds exactly what lookups give, and it was told
why each broker left. What it recorded keeps the promises of a watch."""

from __future__ import annotations

from hypothesis import settings

from tests.properties import examples
from tests.unit.namesrv.watch_machine import WatchesAgainstLookups

TestWatchesAgainstLookups = WatchesAgainstLookups.TestCase
TestWatchesAgainstLookups.settings = settings(max_examples=examples(100), stateful_step_count=40)
