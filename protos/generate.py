"""Build hook: generates gRPC code from protos/ and the package that Spark looks for, for all kinds of installs.

The code goes to gen/, which git ignores: a wheel carries its packages, an editable install has gen/ on its path.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("namesrv_api", "namesrv_internal", "broker_agent_api")
SPARK_PACKAGE = "pyspark_namesrv"
"""Spark finds data sources by top-level packages of such names alone."""


def generate(root: Path, out: Path) -> None:
    """Compiles all of protos/ into typed packages below ``out``, and copies the package that Spark looks for.

    Programs that import during this find all modules.
    """
    with TemporaryDirectory(dir=out.parent, prefix=".gen-") as fresh:
        _compile(root / "protos", Path(fresh))
        package = Path(fresh, SPARK_PACKAGE)
        package.mkdir()
        shutil.copyfile(root / "route_pipeline" / "spark_autoload.py", package / "__init__.py")
        _put_in_place(Path(fresh), out)


def _compile(protos: Path, out: Path) -> None:
    from grpc_tools import protoc

    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    arguments = [
        "protoc",
        f"--proto_path={protos}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_grpc_out={out}",
        *files,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed; its messages are above")
    for package in PACKAGES:
        for folder in (out / package, out / package / "v1"):
            (folder / "__init__.py").touch()
        (out / package / "py.typed").touch()


def _put_in_place(fresh: Path, out: Path) -> None:
    """Makes a folder like a fresh one. Equal files stay, and no file is missing at any time."""
    names = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for name in sorted(names):
        target = out / name
        if target.is_file() and target.read_bytes() == (fresh / name).read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).replace(target)
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.suffix != ".pyc" and path.relative_to(out) not in names:
            path.unlink()


class GenerateGrpcCode(BuildHookInterface[Any]):
    """Runs protoc before hatchling collects the files of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generates the code and, for a wheel, adds it. Called by hatchling."""
        if self.target_name != "wheel":
            return
        out = Path(self.root) / "gen"
        generate(Path(self.root), out)
        if version != "editable":
            for package in (*PACKAGES, SPARK_PACKAGE):
                build_data["force_include"][str(out / package)] = package
