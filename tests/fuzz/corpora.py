"""Samples of what is right, and what once was answered wrongly: a folder for each that reads them."""

from __future__ import annotations

import os
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
"""Inputs for each target; ``make fuzz`` tries more."""


def samples(name: str) -> list[bytes]:
    """Those of one folder."""
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]
