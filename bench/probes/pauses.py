"""Pauses of the interpreter for garbage collection: how long and how often."""

from __future__ import annotations

import gc
import time

GENERATIONS = ("young", "middle", "full")
"""What runs are called by the oldest generation that they look at, as in ``namesrv.app.writer``."""


class Pauses:
    """Garbage collections while the block runs; can be entered again, and then goes on counting."""

    def __init__(self) -> None:
        self._began = 0.0
        self.clear()

    def clear(self) -> None:
        """Starts counting from nothing."""
        self.longest_millis = 0.0
        self.runs = [0] * len(GENERATIONS)

    def __enter__(self) -> None:
        gc.callbacks.append(self._on_collection)

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_millis = max(self.longest_millis, (time.perf_counter() - self._began) * 1000)
            self.runs[info["generation"]] += 1
