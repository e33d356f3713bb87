"""The wheels of a release, installed by the commands of docs/install.md in a container without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from namesrv_common.version import __version__
from release.engine import BASE_IMAGE, CONTAINER_SECONDS, CommandError, Engine, NoEngineError
from release.engine_wheel import NoCargoError
from release.images import base_archive
from tests.containers.conftest import SECONDS, gather_wheels
from tests.support.pages import code_blocks
from tests.support.programs.processes import eventually

pytestmark = pytest.mark.timeout(600)

NAME = "empty"
FOLDER = "/srv"
"""Where the container has a folder wheels, as the page says."""
(WAYS,) = [block for block in code_blocks("docs/install.md", "console") if "[broker-agent]" in block]
INSTALLED = {
    line.removeprefix("$ pip "): line.partition("[")[2].partition("]")[0].split(",")[0] for line in WAYS.splitlines()
}
"""Arguments of pip that the page shows, each with the first of its extras."""
PROGRAMS = {
    "namesrv": ("namesrv --version", __version__),
    "broker-agent": ("broker-agent --version", __version__),
    "nsctl": ("nsctl --version", __version__),
    "console": ("nsctl console --help", "--behind-proxy"),
    "route-pipeline": ("route-pipeline --version", __version__),
}
"""A command of each extra, and a part of what it prints."""


Shell = Callable[[str], str]
"""Returns what a shell of the container prints for a command, among the wheels. Raises CommandError."""


@pytest.fixture(scope="module")
def run(empty_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A container with Python and the wheels, and no network."""
    wheels = tmp_path_factory.mktemp("release") / "wheels"
    try:
        gather_wheels(wheels, "python3.11", ",".join(PROGRAMS))
        empty_engine.import_base(base_archive())
    except (NoEngineError, NoCargoError) as error:
        pytest.skip(f"no container with the wheels: {error}")
    empty_engine.podman(
        *("run", "--detach", f"--name={NAME}", "--network=none", f"--timeout={CONTAINER_SECONDS}"),
        *("--env=PIP_NO_INDEX=1", "--env=PIP_FIND_LINKS=.", "--env=PIP_ROOT_USER_ACTION=ignore"),
        *(f"--volume={wheels}:{FOLDER}/wheels:ro", f"localhost/{BASE_IMAGE}", "sleep", str(CONTAINER_SECONDS)),
    )
    try:
        in_shell = ("exec", f"--workdir={FOLDER}/wheels", NAME, "sh", "-euc")
        yield lambda command: empty_engine.podman(*in_shell, command, timeout=300)
    finally:
        empty_engine.podman("rm", "--force", "--time=1", "--ignore", NAME)


@pytest.mark.parametrize("arguments", INSTALLED)
def test_each_program_installs_from_wheels_without_a_compiler(run: Shell, arguments: str) -> None:
    extra = INSTALLED[arguments]
    with pytest.raises(CommandError):
        run("command -v cc || command -v gcc || command -v cargo")
    environment = f"/opt/only-{arguments.count('namesrv_engine')}-{extra}"
    run(f"python -m venv {environment} && {environment}/bin/pip {arguments}")
    command, printed = PROGRAMS[extra]
    assert printed in run(f"{environment}/bin/{command}")


def test_a_name_server_of_a_release_serves_and_its_tools_find_it(run: Shell) -> None:
    (from_folder,) = [block for block in code_blocks("docs/install.md", "console") if "--no-index" in block]
    arguments = from_folder.removeprefix("$ pip ").replace("\\\n", " ").strip()
    run(f"cd .. && python -m venv /opt/whole && /opt/whole/bin/pip {arguments}")
    serve, ask = next(block for block in code_blocks("docs/install.md", "console") if "serve" in block).split("\n")[:2]
    run(f"cd /tmp && PATH=/opt/whole/bin:$PATH && {serve.removeprefix('$ ')}")
    asked = f"PATH=/opt/whole/bin:$PATH; {ask.removeprefix('$ ')} || true"
    assert "WARMING" in eventually(lambda: run(asked), lambda said: "WARMING" in said, within_seconds=SECONDS)
