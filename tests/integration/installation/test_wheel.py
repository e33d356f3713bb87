"""What a release ships, in empty environments: every console script answers, or says which extra is missing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from namesrv_common.version import __version__
from release.bundle import CHECKSUMS, bundle
from release.distribution import (
    PROGRAMS,
    build,
    build_client,
    check_client,
    check_contents,
    check_library,
    check_program,
)
from tests.support.pages import ROOT, code_blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def generated() -> dict[Path, tuple[int, int]]:
    """The generated modules of this repository; a file that was written again is another one."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (ROOT / "gen").rglob("*.py")}


@pytest.fixture(scope="module")
def generated_before() -> dict[Path, tuple[int, int]]:
    """Those from before a wheel was built."""
    return generated()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, generated_before: dict[Path, tuple[int, int]]) -> Path:
    """Built as a release is, from its source distribution alone."""
    assert generated_before
    wheel, sdist = build(tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("dist"))
    check_contents(wheel, sdist)
    return wheel


def test_programs_that_import_the_generated_code_miss_nothing_while_a_wheel_is_built(
    wheel: Path, generated_before: dict[Path, tuple[int, int]]
) -> None:
    assert wheel.exists()
    assert generated() == generated_before


def test_without_extras_the_library_works_and_each_program_says_in_one_line_what_it_lacks(
    wheel: Path, tmp_path: Path
) -> None:
    check_library(tmp_path, wheel)


def test_the_client_library_has_a_wheel_of_its_own_without_the_programs(wheel: Path, tmp_path: Path) -> None:
    client = build_client(tmp_path, wheel)
    check_client(tmp_path, client)
    assert f"./{client.name}" in "".join(code_blocks("docs/install.md", "console"))


@pytest.mark.parametrize("extra", PROGRAMS)
def test_a_program_answers_from_an_environment_with_its_own_extra_only(wheel: Path, tmp_path: Path, extra: str) -> None:
    check_program(tmp_path, wheel, extra)


def test_what_a_release_has_beside_its_wheels_is_whole_and_readable(tmp_path: Path) -> None:
    made = {path.name for path in bundle(tmp_path)}
    assert made == {path.name for path in tmp_path.iterdir()}
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUMS], cwd=tmp_path, check=True, capture_output=True)
    contract = FileDescriptorSet.FromString((tmp_path / f"namesrv-protos-{__version__}.binpb").read_bytes())
    services = {f"{file.package}.{service.name}" for file in contract.file for service in file.service}
    assert {"namesrv_api.v1.RouteService", "broker_agent_api.v1.ClientService"} <= services
    assert not any("internal" in name for name in services)
    bill = json.loads((tmp_path / f"namesrv-{__version__}.cdx.json").read_text())
    listed = {component["name"] for component in bill["components"] if component["purl"]}
    assert {"grpcio", "tenacity", "tokio", "rustls"} <= listed
    assert f"<version>{__version__}</version>" in (ROOT / "clients/java/pom.xml").read_text()
    assert f'\nversion = "{__version__}"\n' in (ROOT / "engine/Cargo.toml").read_text()
    assert (tmp_path / f"release-notes-{__version__}.md").read_text().startswith("## ")
