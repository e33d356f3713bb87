"""Rules for all tests."""

from __future__ import annotations

from hypothesis import settings

from support.processes import MEASURED, Process
from tests.properties import MORE

# A deadline would be a timed assertion: a busy machine fails it. Whether a change passes must not depend on luck
# either, so each property has a fixed seed, made of its code.
settings.register_profile("fixed", deadline=None, derandomize=True)
# What `make fuzz` takes: luck is tried there.
settings.register_profile("fuzz", deadline=None, derandomize=False, print_blob=True, max_examples=100 * MORE)
settings.load_profile("fixed")

# Coverage starts with an interpreter.
Process.are_forked = not MEASURED
