"""route_client does what every client of the name servers must do: the cases of clients/conformance."""

from __future__ import annotations

import operator
import sys

import pytest

from clients.conformance import python_client
from clients.conformance.play import CASES, Case, play


@pytest.mark.parametrize("case", CASES, ids=operator.itemgetter("id"))
def test_a_case_is_passed(case: Case) -> None:
    play(case, [sys.executable, python_client.__file__])
