"""Properties: the number of their examples, the seed of these, and the outcomes that state machines must reach."""

from __future__ import annotations

import os
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import Phase, core, event, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine

if TYPE_CHECKING:
    from unittest import TestCase

SEED = os.environ.setdefault("TEST_SEED", str(SystemRandom().getrandbits(32)))
"""Seed of the profile ``ci``. The workers of a run inherit it."""

_DEFAULT = 100
"""Hypothesis's own number of examples."""

# A deadline would be a timed assertion: a busy machine fails it. Where a change passes by luck nobody can repeat it, so
# on a developer's machine each property has a fixed seed, made of its code.
settings.register_profile("fixed", deadline=None, derandomize=True, max_examples=_DEFAULT * 2 // 5)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    print_blob=True,
    max_examples=_DEFAULT,
    # Without Phase.explain, which runs a failing example for minutes more under a tracer.
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)
settings.register_profile("fuzz", deadline=None, derandomize=False, print_blob=True, max_examples=20 * _DEFAULT)


def seed_test(nodeid: str) -> None:
    """Seeds the examples of a test. With ``--hypothesis-seed``, Hypothesis would not use its database."""
    core.threadlocal._hypothesis_global_random = Random(f"{SEED} {nodeid}")


def examples(count: int) -> int:
    """Number of examples under the profile of this run, for a test that tries so many in CI."""
    return count * settings().max_examples // _DEFAULT


class Machine(RuleBasedStateMachine):
    """A state machine that declares its outcomes."""

    outcomes: ClassVar[frozenset[str]] = frozenset()
    """What a run must reach at least once in all its examples, such as the reason of a refusal."""
    reached: ClassVar[set[str]] = set()

    def reaches(self, outcome: str) -> None:
        """Notes an outcome. ``pytest --hypothesis-show-statistics`` shows how often each comes."""
        event(outcome)
        self.reached.add(outcome)


_MOST_TRIES = 5
"""Most runs of a machine until all of its outcomes are reached. Some come in one of fifty examples."""


def machine_test(machine: type[Machine], count: int, steps: int) -> type[TestCase]:
    """Returns a test that runs so many examples, and fails if they never reach one of the machine's outcomes."""
    case: Any = machine.TestCase

    class Tested(case):  # type: ignore[misc]
        settings = settings(max_examples=examples(count), stateful_step_count=steps)

        def runTest(self) -> None:  # noqa: N802 - unittest's name
            machine.reached = set()
            for number in range(_MOST_TRIES):
                if number and self.settings.derandomize:
                    seed(number)(machine)
                super().runTest()
                if machine.outcomes <= machine.reached:
                    return
            pytest.fail(f"no example has reached: {', '.join(sorted(machine.outcomes - machine.reached))}")

        runTest.is_hypothesis_test = True  # type: ignore[attr-defined]

    return Tested
