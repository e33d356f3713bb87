"""Any sequence of changes leaves the tables as a plain model says, and answers as generated code would encode them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.properties import machine_test
from tests.unit.namesrv.reference_machine import often_disturbed
from tests.unit.namesrv.reference_rules import TablesAgreeWithTheModel, TablesAgreeWithTheModelUnderTheGuard


@pytest.fixture(autouse=True, scope="module")
def _changes_are_often_disturbed() -> Iterator[None]:
    with often_disturbed():
        yield


TestTablesAgreeWithTheModel = machine_test(TablesAgreeWithTheModel, 100, steps=40)
TestTablesAgreeWithTheModelUnderTheGuard = machine_test(TablesAgreeWithTheModelUnderTheGuard, 100, steps=40)
