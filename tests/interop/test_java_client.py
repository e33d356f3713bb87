"""The Java client module: its unit tests, and its example with TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.conftest import Built
from tests.interop.programs import (
    INSTALL_SECONDS,
    MAVEN_OPTIONS,
    Programs,
    require,
    run,
)
from tests.support.registrations import make_read_only
from tests.support.rocketmq_programs.maven import maven_environment
from tests.support.secured.fleet import TOKENS, Place, with_its_broker

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

TOPIC = "TopicTest"


@pytest.fixture
def programs(built: Built) -> Programs:
    """The module's programs."""
    return built("java")


def test_the_modules_own_tests_pass(programs: Programs) -> None:
    run([require("mvn"), *MAVEN_OPTIONS, "surefire:test"], programs.folder, maven_environment())


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_the_example_prints_the_route_and_each_change(programs: Programs, tmp_path: Path, kind: str) -> None:
    place = Place.make(tmp_path)
    certificate, key = map(str, place.callers["client"])
    shown = {
        "token": {"NAMESRV_TOKEN": TOKENS["client"]},
        "mTLS": {"NAMESRV_CERT": certificate, "NAMESRV_KEY": key},
    }
    authority = str(place.authority.path)
    expected = [
        f"{TOPIC}: FRESH",
        "  broker-a 0=127.0.0.1:10911",
        "the next message goes to 127.0.0.1:10911",
        "order-7 goes to queue 0",
    ]
    with (
        with_its_broker(place, kind) as (namesrv, broker),
        programs.start("routes", str(namesrv.endpoint), TOPIC, NAMESRV_CA=authority, **shown[kind]) as program,
    ):
        assert [program.next_text() for _ in expected] == expected
        make_read_only(broker)
        assert program.next_text() == f"{TOPIC}: FRESH"
