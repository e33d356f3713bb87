"""Readers in other languages that take nothing for too long learn why their stream ended."""

from __future__ import annotations

import pytest

from tests.interop.conftest import Built
from tests.interop.programs import INSTALL_SECONDS
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import fill

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)


@pytest.mark.parametrize("language", ["go", "node"])
def test_a_reader_that_was_cut_reads_slow_reader_when_it_goes_on(language: str, built: Built) -> None:
    settings = ("--scan-not-active-broker-interval-millis", "0", "--slow-reader-timeout-millis", "300")
    with NamesrvProcess(*settings) as namesrv, namesrv.connect() as filler:
        fill(filler)
        with built(language).start("stalled", str(namesrv.endpoint)) as reader:
            assert reader.next_line() == {}
            eventually(lambda: namesrv.events("slow_reader_cut"))
            reader.go_on()
            code, errors = reader.end()
            status = {"go": "ResourceExhausted", "node": "RESOURCE_EXHAUSTED"}[language]
            assert (code, errors.split(":")[0]) == (1, f"{status} SLOW_READER"), errors
