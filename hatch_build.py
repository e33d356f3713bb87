"""Build hook: generates the gRPC code from protos/ for wheels and editable installs alike.

The code goes to gen/, which git ignores: a wheel carries its packages, an editable install has gen/ on its path.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("namesrv_api", "broker_agent_api")


def generate(root: Path, out: Path) -> None:
    """Compiles every file of protos/ into typed Python packages below ``out``."""
    from grpc_tools import protoc

    protos = root / "protos"
    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
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
            for package in PACKAGES:
                build_data["force_include"][str(out / package)] = package
