"""The version before this one, built from history: its programs and its library, next to those of this tree."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
COMMIT = Path(__file__).with_name("PREVIOUS").read_text(encoding="utf-8").strip()
BUILD_SECONDS = 300


@dataclass(frozen=True)
class PreviousVersion:
    """A folder with all packages of the version, as its wheel has them."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes an interpreter, and so each program of ours, take this version instead of the tree's own."""
        return {"PYTHONPATH": str(self.folder)}


def build_previous(folder: Path) -> PreviousVersion:
    """Builds the commit that PREVIOUS names. Skips the test, by name, where there is no whole history."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is missing: the previous version cannot be built")
    source = folder / "source"
    source.mkdir()
    archive = folder / "source.tar"
    found = subprocess.run(
        [git, "archive", "--output", str(archive), COMMIT], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        asked = [git, "rev-parse", "--is-shallow-repository", "HEAD~1"]
        told = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert told.returncode or not told.stdout.startswith("false"), f"no commit {COMMIT[:8]}: correct PREVIOUS"
        pytest.skip(f"there is no history that has commit {COMMIT[:8]}: the previous version cannot be built")
    shutil.unpack_archive(archive, source, filter="data")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("namesrv-*.whl")
    packages = folder / "packages"
    zipfile.ZipFile(wheel).extractall(packages)
    _put_where_scripts_look(packages)
    return PreviousVersion(packages)


def _put_where_scripts_look(packages: Path) -> None:
    """Puts each program where the scripts of this tree look for it: in ``__main__``, if the version has none there."""
    (declared,) = packages.glob("namesrv-*.dist-info/entry_points.txt")
    parser = configparser.ConfigParser()
    parser.read_string(declared.read_text(encoding="utf-8"))
    for target in parser["console_scripts"].values():
        module, _, function = target.partition(":")
        main = packages / module.partition(".")[0] / "__main__.py"
        if not main.exists():
            main.write_text(f"from {module} import {function} as main\n", encoding="utf-8")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS)
    assert done.returncode == 0, done.stderr
