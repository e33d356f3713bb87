"""Whatever happens: a snapshot with the changes after it is the snapshot at the end."""

from __future__ import annotations

from tests.properties import machine_test
from tests.unit.namesrv.change_machine import ChangesMakeSnapshots

TestChangesMakeSnapshots = machine_test(ChangesMakeSnapshots, 250, steps=30)
