"""A console script says in one line which extra is missing, and hides no defect behind that line."""

from __future__ import annotations

from pathlib import Path

import pytest

from namesrv_common.process.program import run_program
from namesrv_common.version import __version__


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a program's modules may be put."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_library_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "program_without_library.py").write_text("import not_installed_here.part")
    with pytest.raises(SystemExit) as ended:
        run_program("program", "program_without_library", "extra")
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "program: not_installed_here is missing; install the extra extra: pip install -e '.[extra]' in a clone, "
        f"or pip install './namesrv-{__version__}-py3-none-any.whl[extra]'\n"
    )


def test_one_that_is_needed_only_later_is_named_as_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "program_that_imports_later.py").write_text("def main():\n    import not_installed_here\n")
    with pytest.raises(SystemExit):
        run_program("program", "program_that_imports_later", "extra")
    assert "not_installed_here is missing" in capsys.readouterr().err


def test_a_missing_part_of_what_is_installed_is_a_defect_and_keeps_its_traceback(folder: Path) -> None:
    (folder / "program_with_defect.py").write_text("import namesrv_common.no_such_module")
    with pytest.raises(ModuleNotFoundError, match=r"namesrv_common\.no_such_module"):
        run_program("program", "program_with_defect", "extra")
