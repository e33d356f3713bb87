"""The service config that docs/grpc.md explains: clients in several languages use it with two real name servers."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from namesrv_api.v1.route_service_pb2 import DESCRIPTOR, GetTopicRouteRequest, GetTopicRouteResponse

from tests.interop.conftest import Built
from tests.interop.programs import INSTALL_SECONDS, REPOSITORY, Programs, RunningProgram
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv
from tests.support.programs.processes import Client, NamesrvProcess, eventually
from tests.support.registrations import register

pytestmark = pytest.mark.timeout(2 * INSTALL_SECONDS)

CONFIG = REPOSITORY / "examples" / "service_config.json"
TOPIC = "TopicTest"
ENOUGH = 200
"""More answers than one of two name servers would give alone if calls alternated."""
ENOUGH_REPEATED = 20
"""Each takes a pause of 0.1 s."""
SERVICE = DESCRIPTOR.services_by_name["RouteService"]


@pytest.fixture(params=["python", "java", "node"])
def programs(request: pytest.FixtureRequest, built: Built) -> Programs:
    """The program of one language after the other."""
    return built(request.param)


@pytest.fixture(params=["python", "java"])
def checking_programs(request: pytest.FixtureRequest, built: Built) -> Programs:
    """Those whose gRPC library checks health and reads waitForReady."""
    return built(request.param)


def calls(program: RunningProgram) -> tuple[Counter[str], list[str]]:
    """The answers since the last question by the epochs of the name servers, and what other calls failed with."""
    program.go_on()
    line = program.next_line()
    return Counter(line["answers"]), line["failures"]


def answers_until(program: RunningProgram, accept: Callable[[Counter[str]], bool]) -> Counter[str]:
    """Adds up the answers until they are accepted. No call may fail."""
    answers = Counter[str]()

    def more() -> Counter[str]:
        found, failures = calls(program)
        assert failures == []
        answers.update(found)
        return answers

    return eventually(more, accept)


def codes(errors: list[str]) -> set[str]:
    """The codes of errors, which each language writes in its own way, without what separates their words."""
    return {re.match(r"\w+", error)[0].upper().replace("_", "") for error in errors}  # type: ignore[index]


def epoch_with_route(namesrv: NamesrvProcess) -> str:
    """Registers a broker with the topic; returns the name server's epoch."""
    with namesrv.connect() as client:
        register(client, TOPIC)
        answer = client.routes.GetTopicRoute(GetTopicRouteRequest(topic=TOPIC), timeout=Client.TIMEOUT)
    return answer.header.epoch


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """The service config with a change, as a file."""
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    change(config)
    file = folder / "service_config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("end", [NamesrvProcess.terminate, NamesrvProcess.kill])
def test_no_call_fails_when_one_of_two_name_servers_ends(
    programs: Programs,
    namesrv: NamesrvProcess,
    other: NamesrvProcess,
    end: Callable[[NamesrvProcess], object],
    tmp_path: Path,
) -> None:
    # A busy machine may hold a call up for longer than the 3 s of the file.
    patient = changed(tmp_path, lambda config: config["methodConfig"][0].update(timeout="60s"))
    stays, ends = epoch_with_route(namesrv), epoch_with_route(other)
    with programs.start("balanced", patient, f"{namesrv.endpoint},{other.endpoint}", TOPIC) as program:
        answers_until(program, lambda answers: answers.keys() == {stays, ends})
        end(other)
        assert calls(program)[1] == []  # among them are calls that the other name server had
        assert answers_until(program, lambda answers: answers.total() >= ENOUGH).keys() == {stays}


def test_calls_fail_only_until_a_name_server_that_hangs_is_noticed(
    checking_programs: Programs, namesrv: NamesrvProcess, other: NamesrvProcess
) -> None:
    stays, hangs = epoch_with_route(namesrv), epoch_with_route(other)
    with checking_programs.start("balanced", str(CONFIG), f"{namesrv.endpoint},{other.endpoint}", TOPIC) as program:
        answers_until(program, lambda answers: answers.keys() == {stays, hangs})
        other.signal(signal.SIGSTOP)
        assert codes(eventually(lambda: calls(program)[1])) == {"DEADLINEEXCEEDED"}
        in_a_row = Counter[str]()

        def answers() -> Counter[str]:
            found, failures = calls(program)
            if failures:
                in_a_row.clear()
            in_a_row.update(found)
            return in_a_row

        # Before, two callers get few answers between their failures: every other call takes 3 s and fails.
        assert eventually(answers, lambda now: now.total() >= ENOUGH).keys() == {stays}


class FailingEveryOtherLookup(ScriptedNamesrv):
    """As in the way of a connection that broke."""

    services = (SERVICE,)

    def GetTopicRoute(self, _request: GetTopicRouteRequest, context: grpc.ServicerContext) -> GetTopicRouteResponse:  # noqa: N802
        if len(self.asked["GetTopicRoute"]) % 2:
            context.abort(grpc.StatusCode.UNKNOWN, "in the way of a connection that broke")
        return GetTopicRouteResponse(header=self.header())


def test_a_lookup_that_ended_with_unknown_is_repeated(programs: Programs) -> None:
    with (
        FailingEveryOtherLookup(epoch="fake") as failing,
        programs.start("balanced", str(CONFIG), str(failing.endpoint), TOPIC) as program,
    ):
        assert answers_until(program, lambda answers: answers.total() >= ENOUGH_REPEATED).keys() == {"fake"}


def test_a_name_server_that_warms_up_gets_no_calls(
    checking_programs: Programs, namesrv: NamesrvProcess, tmp_path: Path
) -> None:
    with NamesrvProcess("--warm-up-millis", "600000") as warming:
        warm, cold = epoch_with_route(namesrv), epoch_with_route(warming)
        endpoints = f"{namesrv.endpoint},{warming.endpoint}"
        with checking_programs.start("balanced", str(CONFIG), endpoints, TOPIC) as program:
            assert answers_until(program, lambda answers: answers.total() >= ENOUGH).keys() == {warm}
        unchecked = changed(tmp_path, lambda config: config.pop("healthCheckConfig"))
        with checking_programs.start("balanced", unchecked, endpoints, TOPIC) as program:
            answers_until(program, lambda answers: answers.keys() == {warm, cold})


def test_calls_wait_for_a_name_server_only_if_the_config_says_so(
    checking_programs: Programs, namesrv: NamesrvProcess, tmp_path: Path
) -> None:
    def lookups(config: dict[str, Any]) -> dict[str, Any]:
        methods: dict[str, Any] = config["methodConfig"][0]
        del methods["retryPolicy"]
        methods["timeout"] = "60s"  # a name server may take longer to start than a lookup
        return methods

    assert namesrv.terminate() == 0
    endpoint = namesrv.endpoint
    hasty = changed(tmp_path, lambda config: lookups(config).update(waitForReady=False))
    with checking_programs.start("balanced", hasty, str(endpoint), TOPIC) as program:
        assert codes(eventually(lambda: calls(program)[1])) == {"UNAVAILABLE"}
    patient = changed(tmp_path, lookups)
    with checking_programs.start("balanced", patient, str(endpoint), TOPIC) as program:
        assert calls(program)[1] == []
        with NamesrvProcess(port=endpoint.port):
            # It does not know the topic, so this is its own answer.
            assert codes(eventually(lambda: calls(program)[1])) == {"NOTFOUND"}
