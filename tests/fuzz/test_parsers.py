"""No bytes make a parser of ours fail in any way but with the error that says what is wrong with them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings

from tests.fuzz.mutations import EXAMPLES, HOSTILE, bytes_like, samples
from tests.fuzz.targets import TARGETS, Target

pytestmark = pytest.mark.fuzz

MOST_CORPUS_BYTES = 16 * 1024
MOST_ERROR_CHARACTERS = 2_500


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What targets log is not looked at, and printing it would take most of the time."""
    with structlog.testing.capture_logs():
        yield


def check(target: Target, data: bytes) -> bool:
    """Whether a target takes the bytes. It fails in no other way than with its own error, of one line."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            target.read(data, Path(folder))
        except target.refuses_with as refused:
            error = refused
        else:
            return True
    assert not isinstance(error, UnicodeError), "an error of Python's own"
    assert "\n" not in str(error), "log lines and terminals show one line"
    assert len(str(error)) < MOST_ERROR_CHARACTERS, "an error does not repeat all that was sent"
    return False


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_has_what_a_parser_takes_and_is_small(name: str) -> None:
    taken = [check(TARGETS[name], sample) for sample in samples(name)]
    assert any(taken)
    assert all(len(sample) <= MOST_CORPUS_BYTES for sample in samples(name))


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_are_refused_clearly_or_taken(name: str) -> None:
    for data in (b"", *HOSTILE):
        check(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.timeout(3_600)
def test_bytes_that_are_almost_right_are_refused_clearly_or_taken(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(data=bytes_like(samples(name)))
    def run(data: bytes) -> None:
        check(target, data)

    run()
