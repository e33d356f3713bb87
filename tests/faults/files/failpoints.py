"""Every step that a program makes with a file, and how a process ends that crashes there."""

from __future__ import annotations

import signal
from pathlib import Path

LIST = Path(__file__).with_name("failpoints.txt")
"""All failpoints: what the suite passes and what it crashes at. Whoever adds a step on a file adds its points here."""
CRASHED = -signal.SIGKILL
