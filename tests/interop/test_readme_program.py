"""The programs for Node of the page for client authors, run by Node: skipped by name where there is none."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.interop.programs import ENVIRONMENT, INSTALL_SECONDS, INTEROP, REPOSITORY, RUN_SECONDS, Programs, require
from tests.support.pages import code_blocks
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.registrations import registration

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

ADDRESS = "127.0.0.1:9876"
"""Where the page's name server is."""


def test_the_program_prints_the_brokers_of_a_topic(
    node_programs: Programs, namesrv: NamesrvProcess, client: Client
) -> None:
    client.registration.RegisterBroker(registration(), timeout=client.TIMEOUT)
    (program,) = code_blocks("docs/clients.intro.md", "js")
    assert ADDRESS in program
    place = node_programs.folder.parents[2]  # beside protos/, as the page says
    if not (place / "node_modules").exists():
        (place / "node_modules").symlink_to(node_programs.folder / "node_modules")
    (place / "readme.mjs").write_text(program.replace(ADDRESS, str(namesrv.endpoint)), encoding="utf-8")

    command = [require("node"), "readme.mjs"]
    done = subprocess.run(
        command, cwd=place, env=ENVIRONMENT, capture_output=True, check=False, encoding="utf-8", timeout=RUN_SECONDS
    )

    assert (done.stderr, done.returncode) == ("", 0)
    ((broker_id, address),) = client.addrs().items()
    assert done.stdout == f"broker-a [ {{ brokerAddr: '{address}', brokerId: '{broker_id}' }} ]\n"


def test_the_packages_that_the_page_names_are_those_that_clients_are_tested_with() -> None:
    named = re.findall(r"`npm install ([^`]+)`", (REPOSITORY / "docs/clients.intro.md").read_text(encoding="utf-8"))
    pinned = json.loads((INTEROP / "node" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    assert named
    assert {package for line in named for package in line.split()} <= pinned.keys()
