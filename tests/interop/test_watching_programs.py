"""The programs of docs/grpc.md that watch routes: they hold on through what happens to name servers and networks."""

from __future__ import annotations

import itertools
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.network import Network
from tests.interop.conftest import BUILDERS, Built
from tests.interop.programs import INSTALL_SECONDS, Programs, RunningProgram, shown_by_client
from tests.support import registrations
from tests.support.pages import code_blocks
from tests.support.programs.processes import Client, NamesrvProcess
from tests.support.secured.fleet import Place, with_its_broker

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

WAY = ("program", "namesrv")
LANGUAGES = tuple(language for language in BUILDERS if language not in {"go", "java"})
"""Go and Java have client modules instead."""
TOPIC = "TopicTest"
ADDRESS = "127.0.0.1:10911"
ROUTE = f"{TOPIC}: broker-a 0={ADDRESS}"
KEPT = f"{TOPIC}: its brokers may live, so its route is kept for 120 s"


class ShortWatchesNamesrv(NamesrvProcess):
    """A name server whose watches end after a second at most."""

    _code = "from namesrv import limits, __main__; limits.MAX_WATCH_SECONDS = 1.0; __main__.main()"
    program = (sys.executable, "-c", _code)


@pytest.fixture(params=LANGUAGES)
def programs(request: pytest.FixtureRequest, built: Built) -> Programs:
    """The program of each language in turn."""
    return built(request.param)


def register(*namesrvs: NamesrvProcess) -> list[int]:
    """Tells each name server of a broker with the topic; returns their revisions."""
    revisions = []
    for namesrv in namesrvs:
        with namesrv.connect() as client:
            revisions.append(registrations.register(client, TOPIC).header.revision)
    return revisions


def expect(program: RunningProgram, *lines: str) -> None:
    """Reads lines and compares them with the given ones."""
    assert [program.next_text() for _ in lines] == list(lines)


def test_a_program_prints_what_its_page_shows_of_arrivals_breaks_and_ends(
    programs: Programs, namesrv: NamesrvProcess, other: NamesrvProcess, client: Client
) -> None:
    (shown,) = (block for block in code_blocks("docs/grpc.md", "text") if block.startswith("watching "))
    with Network(seed=1) as network:
        reached = network.way(*WAY, namesrv.endpoint)
        for on_page, here in {"10.0.0.1:9876": reached, "10.0.0.2:9876": other.endpoint}.items():
            shown = shown.replace(on_page, str(here))
        lines = iter(shown.replace("10.0.0.7:10911", ADDRESS).splitlines())

        def expect_shown(count: int) -> None:
            expect(program, *itertools.islice(lines, count))

        with programs.start("watching", f"{reached},{other.endpoint}", TOPIC) as program:
            expect_shown(2)
            assert register(namesrv) == [1]
            expect_shown(1)
            network.reset(*WAY)
            expect_shown(1)
            registrations.unregister(client)
            expect_shown(2)
            assert namesrv.terminate() == 0
            expect_shown(2)
    assert list(lines) == []


def test_a_program_goes_on_when_its_name_server_has_gone_or_says_nothing(
    programs: Programs, namesrv: NamesrvProcess, other: NamesrvProcess
) -> None:
    register(namesrv, other)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        places = f"{mute},{namesrv.endpoint},{other.endpoint}"
        with programs.start("watching", places, TOPIC) as program:
            beginning = "from the beginning"
            expect(program, f"watching {mute} {beginning}", f"watching {namesrv.endpoint} {beginning}", ROUTE)
            assert namesrv.terminate() == 0  # it says that it ends: its clients need not ask again
            expect(program, f"watching {other.endpoint} {beginning}", ROUTE)


def test_every_program_asks_again_when_its_name_server_freezes(built: Built, namesrv: NamesrvProcess) -> None:
    with ExitStack() as stack:
        # All at once, because each takes 10 to 15 s.
        running = [
            stack.enter_context(programs.start("watching", str(namesrv.endpoint), TOPIC))
            for programs in map(built, LANGUAGES)
        ]
        for program in running:
            expect(program, f"watching {namesrv.endpoint} from the beginning", f"{TOPIC}: no route")
        namesrv.signal(signal.SIGSTOP)
        for program in running:
            assert program.next_text().startswith(f"watching {namesrv.endpoint} ")


def test_every_program_chooses_a_name_server_anew_after_an_old_watch(built: Built) -> None:
    with ExitStack() as stack:
        both = [stack.enter_context(ShortWatchesNamesrv()) for _ in range(2)]
        register(*both)
        endpoints = {str(namesrv.endpoint) for namesrv in both}
        running = [
            stack.enter_context(programs.start("watching", ",".join(endpoints), TOPIC))
            for programs in map(built, LANGUAGES)
        ]
        for program in running:
            # A program that stayed at its name server would never watch the other one.
            watched: set[str] = set()
            while watched != endpoints:
                line = program.next_text()
                if line != ROUTE:
                    watching, endpoint, *_ = line.split()
                    assert watching == "watching", line
                    watched.add(endpoint)


def test_a_program_begins_anew_at_a_name_server_that_was_started_again(
    programs: Programs, namesrv: NamesrvProcess
) -> None:
    register(namesrv)
    with programs.start("watching", str(namesrv.endpoint), TOPIC) as program:
        expect(program, f"watching {namesrv.endpoint} from the beginning", ROUTE)
        namesrv.kill()
        with NamesrvProcess(port=namesrv.endpoint.port) as again:
            lines = [program.next_text()]
            while not lines[-1].endswith("from the beginning"):
                lines.append(program.next_text())
            expect(program, KEPT)  # this name server has never seen the broker, which is no sign of its end
            register(again)
            expect(program, ROUTE)
    assert lines[-2].startswith(f"watching {namesrv.endpoint} after ")  # refused: the bookmark is of the time before


def test_a_program_ends_with_the_reason_when_its_request_is_at_fault(programs: Programs, other: NamesrvProcess) -> None:
    done = programs.run("watching", str(other.endpoint), "no such\ttopic")
    assert done.returncode == 1
    assert done.stdout == f"watching {other.endpoint} from the beginning\n"
    assert " INVALID_FIELD: " in done.stderr


@pytest.mark.parametrize("kind", ["token", "mTLS"])
def test_a_program_that_trusts_the_authority_shows_token_or_certificate(
    programs: Programs, tmp_path: Path, kind: str
) -> None:
    place = Place.make(tmp_path)
    with with_its_broker(place, kind) as (namesrv, _):
        endpoint = str(namesrv.endpoint)
        with programs.start("watching", endpoint, TOPIC, **shown_by_client(place, kind)) as program:
            expect(program, f"watching {endpoint} from the beginning", ROUTE)
