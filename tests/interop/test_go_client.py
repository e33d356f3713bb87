"""The Go module: its own tests, its form, and its example."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.interop.conftest import Built
from tests.interop.programs import GO_ENVIRONMENT, INSTALL_SECONDS, REPOSITORY, require, run
from tests.support.programs.processes import NamesrvProcess
from tests.support.registrations import make_read_only
from tests.support.secured.fleet import TOKENS, Place, with_its_broker

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


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_the_example_prints_the_queue_of_a_key_and_each_change(built: Built, tmp_path: Path, kind: str) -> None:
    place = Place.make(tmp_path)
    certificate, key = map(str, place.callers["client"])
    shown = {
        "token": {"NAMESRV_TOKEN": TOKENS["client"]},
        "mTLS": {"NAMESRV_CERT": certificate, "NAMESRV_KEY": key},
    }
    authority = str(place.authority.path)
    with with_its_broker(place, kind) as (namesrv, broker):
        arguments = (str(namesrv.endpoint), "TopicTest", "order-1")
        with built("go").start("example", *arguments, NAMESRV_CA=authority, **shown[kind]) as program:
            assert program.next_text() == "order-1: queue 2 of broker-a"
            make_read_only(broker)
            assert program.next_text() == "TopicTest: 1 broker groups now "


def test_an_unknown_token_is_told_by_its_reason(built: Built, tmp_path: Path) -> None:
    place = Place.make(tmp_path)
    with NamesrvProcess(*place.flags("token")) as namesrv:
        shown = {"NAMESRV_CA": str(place.authority.path), "NAMESRV_TOKEN": "unknown"}
        done = built("go").run("example", str(namesrv.endpoint), "TopicTest", "key", **shown)
    assert (done.returncode, "refused: " in done.stderr, " NOT_AUTHENTICATED: " in done.stderr) == (1, True, True)
