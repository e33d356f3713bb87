"""Failpoints: a program starts with them, and every step on a file goes through one."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork import disk
from tests.support import failpoints
from tests.support.failpoints import STEPS, Failpoints

ROOT = Path(__file__).parents[3]
WRITERS = ("namesrv", "broker_agent", "route_client", "groundwork", "nsctl")
"""The packages whose files have failpoints. The pipeline's store is Spark's and Parquet's."""

EXCEPTIONS = {
    "groundwork/disk.py": "it is where all others write",
}
FILE_METHODS = {"write_text", "write_bytes", "unlink", "rename", "touch", "hardlink_to", "symlink_to", "truncate"}
OS_FUNCTIONS = {"fsync", "fdatasync", "rename", "replace", "link", "unlink", "remove", "truncate", "pwrite"}

SAVE = """
import sys
from pathlib import Path
from groundwork import disk
file = Path(sys.argv[1])
with disk.open_new(file) as stream:
    disk.write(stream, b"content")
    disk.sync(stream)
disk.rename(file, file.with_name("named"))
print("saved")
"""


def save(folder: Path, faults: str | None) -> subprocess.CompletedProcess[str]:
    """Runs a program that saves a file, with these faults."""
    if faults is not None:
        (folder / "faults").write_text(faults)
    environment = {**os.environ, **failpoints.environment(folder / "faults")}
    program = [sys.executable, "-c", SAVE, str(folder / "new")]
    return subprocess.run(program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_every_step_of_the_disk_is_a_failpoint() -> None:
    functions = {name for name, value in vars(disk).items() if inspect.isfunction(value)}
    assert set(STEPS) == functions


def test_a_program_tells_which_points_it_passed_and_in_which_order(tmp_path: Path) -> None:
    assert save(tmp_path, faults=None).stdout == "saved\n"
    assert (tmp_path / "faults.hits").read_text().splitlines() == [
        *("before open new", "after open new", "before write new", "half write new", "after write new"),
        *("before fsync new", "after fsync new", "before rename named", "after rename named"),
    ]
    assert (tmp_path / "named").read_bytes() == b"content"


def test_a_crash_in_the_middle_of_a_write_leaves_half_of_it(tmp_path: Path) -> None:
    ended = save(tmp_path, "half write new = crash\n")
    assert (ended.returncode, ended.stdout) == (-9, "")
    assert (tmp_path / "new").read_bytes() == b"con"


def test_a_point_fails_with_the_error_that_is_asked_for(tmp_path: Path) -> None:
    ended = save(tmp_path, "before fsync other = EIO\n* rename * = ENOSPC\n")
    assert "OSError: [Errno 28] No space left on device" in ended.stderr
    assert (tmp_path / "new").read_bytes() == b"content"
    assert not (tmp_path / "named").exists()


def test_a_slow_disk_only_takes_longer(tmp_path: Path) -> None:
    assert save(tmp_path, "before fsync new = delay 0.01\n").stdout == "saved\n"


def test_a_fault_with_an_unknown_action_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text("* = explode\n")
    with pytest.raises(ValueError, match="FAILPOINTS: 'explode' is neither crash, nor the name of an error"):
        Failpoints(tmp_path / "faults").hit("before fsync x")


def test_a_disk_is_mended_by_changing_the_file(tmp_path: Path) -> None:
    points = Failpoints(tmp_path / "faults")
    (tmp_path / "faults").write_text("* = EROFS\n")
    with pytest.raises(OSError, match="Read-only file system"):
        points.hit("before fsync x")
    (tmp_path / "faults").write_text("")
    points.hit("before fsync x")


def _opens_for_writing(call: ast.Call) -> bool:
    texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    texts += [keyword.value.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)]
    return any(isinstance(text, str) and set(text) & set("wax+") and set(text) <= set("wax+bt") for text in texts)


def _writes(call: ast.Call) -> str | None:
    """What a call does to a file past groundwork.disk, as far as its name tells."""
    function = call.func
    if isinstance(function, ast.Name):
        return "open" if function.id in {"open", "FileIO"} and _opens_for_writing(call) else None
    if not isinstance(function, ast.Attribute):
        return None
    module = function.value.id if isinstance(function.value, ast.Name) else None
    if module == "disk":
        return None
    if module in {"os", "shutil"}:
        return function.attr if function.attr in OS_FUNCTIONS else None
    if function.attr in {"open", "fdopen"} and _opens_for_writing(call):
        return function.attr
    one_argument = len(call.args) == 1 and not call.keywords  # as Path.replace has, and str.replace has not
    return function.attr if function.attr in FILE_METHODS or (function.attr == "replace" and one_argument) else None


def test_no_module_of_ours_writes_renames_or_removes_a_file_past_the_failpoints() -> None:
    found = []
    for package in WRITERS:
        for module in sorted((ROOT / package).rglob("*.py")):
            name = str(module.relative_to(ROOT))
            if name.startswith(tuple(EXCEPTIONS)):
                continue
            calls = (node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call))
            found += [f"{name}:{call.lineno}: {what}" for call in calls if (what := _writes(call))]
    assert found == []
