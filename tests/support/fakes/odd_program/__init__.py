"""A folder that stands first on a program's PYTHONPATH, so that it runs as on an odd machine; see ``sitecustomize``."""

from __future__ import annotations

from pathlib import Path

CLOCK, VERSION = "ODD_CLOCK", "ODD_VERSION"
"""Variables: a file with the seconds by which the wall clock is wrong, the version that the program reports."""


class OddClock:
    """A wall clock that is wrong by what a file says; it may be set while programs run."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """Sets by how much it is ahead; below zero, behind."""
        fresh = self._path.with_suffix(".fresh")
        fresh.write_text(str(seconds), encoding="ascii")
        fresh.replace(self._path)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a program that goes by this clock."""
        return odd_environment(CLOCK, self._path)


def odd_environment(variable: str, value: object) -> dict[str, str]:
    """The variables of a program that is odd in one way."""
    return {"PYTHONPATH": str(Path(__file__).parent), variable: str(value)}
