"""The Go module: its own tests, its form, and its example."""

from __future__ import annotations

import subprocess

import pytest

from tests.interop.conftest import Built
from tests.interop.programs import GO_ENVIRONMENT, INSTALL_SECONDS, REPOSITORY, require, run
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import register

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

LIBRARY = REPOSITORY / "clients" / "go"


def test_the_module_is_formatted_and_its_tests_pass(built: Built) -> None:
    library, go = built("go").folder.parents[2] / "clients" / "go", require("go")
    unformatted = subprocess.run([require("gofmt"), "-l", "."], cwd=LIBRARY, stdout=subprocess.PIPE, check=True)
    assert unformatted.stdout == b""
    run([go, "vet", "./..."], library, GO_ENVIRONMENT)
    run([go, "test", "./..."], library, GO_ENVIRONMENT)


def test_the_module_has_the_service_config_of_the_page() -> None:
    examples = REPOSITORY / "examples"
    assert (LIBRARY / "service_config.json").read_text() == (examples / "service_config.json").read_text()


def test_the_example_prints_the_queue_of_a_key_and_each_change(built: Built, namesrv: NamesrvProcess) -> None:
    with namesrv.connect() as broker:
        register(broker, "TopicTest")
        with built("go").start("example", str(namesrv.endpoint), "TopicTest", "order-1") as program:
            assert program.next_text() == "order-1: queue 2 of broker-a"
            register(broker, "TopicTest", name="broker-b", port=10921)
            assert program.next_text() == "TopicTest: 2 broker groups now "
