"""Whatever happens: a snapshot with the changes after it is the snapshot at the end."""

from __future__ import annotations

from hypothesis import settings

from tests.properties import examples
from tests.unit.namesrv.change_machine import ChangesMakeSnapshots

TestChangesMakeSnapshots = ChangesMakeSnapshots.TestCase
TestChangesMakeSnapshots.settings = settings(max_examples=examples(250), stateful_step_count=30)
