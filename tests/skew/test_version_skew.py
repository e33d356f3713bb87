"""This version with the one before: agents, clients, name servers and data directories, mixed as in an upgrade."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from namesrv_api.v1 import admin_service_pb2
from typer.testing import CliRunner

from nsctl.cli import app
from release.engine import REPOSITORY, CommandError, run
from tests.support.engines import DEVELOPMENT
from tests.support.patience import TIMEOUT
from tests.support.programs.agents import EXACTLY, NEVER_SCAN, Agent, joined, topics_of
from tests.support.programs.processes import Client, NamesrvProcess, Process, eventually
from tests.support.registrations import registration

pytestmark = pytest.mark.skew

COMMIT = Path(__file__).with_name("PREVIOUS").read_text(encoding="utf-8").strip()
BUILD_SECONDS = 300
CLIENT = Path(__file__).with_name("looking_client.py")
ADDR = "127.0.0.1:10911"
TOPIC = "TopicTest"
Environment = dict[str, str]
THIS: Environment = {}
"""What makes a program be this tree's."""


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Builds the commit that PREVIOUS names. Skips the test, by name, where there is no whole history.

    Returns:
        What makes an interpreter, and so each program of ours, take its packages instead of the tree's own.
    """
    folder = tmp_path_factory.mktemp("previous")
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is missing: the previous version cannot be built")
    source = folder / "source"
    source.mkdir()
    archive = folder / "source.tar"
    try:
        run([git, "archive", "--output", str(archive), COMMIT], folder=str(REPOSITORY))
    except CommandError:
        with suppress(CommandError):
            asked = [git, "rev-parse", "--is-shallow-repository", "HEAD~1"]
            told = run(asked, folder=str(REPOSITORY))
            assert not told.startswith("false"), f"no commit {COMMIT[:8]}: correct PREVIOUS"
        pytest.skip(f"there is no history that has commit {COMMIT[:8]}: the previous version cannot be built")
    shutil.unpack_archive(archive, source, filter="data")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    run(build, timeout=BUILD_SECONDS)
    (wheel,) = folder.glob("namesrv-*.whl")
    packages = folder / "packages"
    zipfile.ZipFile(wheel).extractall(packages)
    environment = {"PYTHONPATH": str(packages)}
    program = "import broker_agent, namesrv, route_client; print(namesrv.__file__)"
    assert Path(run([sys.executable, "-P", "-c", program], environment=environment)).is_relative_to(packages)
    return environment


@pytest.fixture(params=["this server", "previous server"])
def pair(request: pytest.FixtureRequest, previous: Environment) -> tuple[Environment, Environment]:
    """Each version's name server, and the other version's agent and client."""
    return (THIS, previous) if request.param == "this server" else (previous, THIS)


def knows(client: Process, queues: int) -> None:
    """Waits until a client knows just the one broker, and this many queues."""
    expected = [({"broker-a": {"0": ADDR}}, queues)]
    eventually(
        lambda: [(line["brokers"], line["queues"]) for line in client.events("client_knows")[-1:]], expected.__eq__
    )


@contextmanager
def name_server(environment: Environment, *arguments: str) -> Iterator[tuple[NamesrvProcess, Client]]:
    # The development engine: the previous version would run on the native engine's wheel of this tree.
    with NamesrvProcess(*arguments, engine=DEVELOPMENT, environment=environment) as server, server.connect() as client:
        yield server, client


def write_topics(path: Path, queues: int) -> None:
    """Has a file of one topic, instead of the one before."""
    config = {"topicName": TOPIC, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    table = {"topicConfigTable": {TOPIC: config}, "dataVersion": {"timestamp": 1_000, "counter": queues}}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(table), encoding="utf-8")
    new.replace(path)


def test_an_agent_and_a_client_get_along_with_the_other_version(
    pair: tuple[Environment, Environment], tmp_path: Path
) -> None:
    (of_server, of_others), topics = pair, tmp_path / "topics.json"
    write_topics(topics, 4)
    with (
        name_server(of_server, *NEVER_SCAN, *EXACTLY) as (server, connection),
        Agent(joined(server), topics=topics, environment=of_others) as agent,
    ):
        eventually(connection.addrs, lambda addrs: addrs == {0: ADDR})
        with Process([sys.executable, str(CLIENT), joined(server), TOPIC], of_others) as client:
            knows(client, 4)
            write_topics(topics, 6)
            knows(client, 6)
            agent.kill()
            eventually(connection.addrs, lambda addrs: addrs == {})


def test_name_servers_of_both_versions_hold_the_same_of_an_agent(previous: Environment, tmp_path: Path) -> None:
    topics = tmp_path / "topics.json"
    write_topics(topics, 4)
    with ExitStack() as stack:
        old, old_client = stack.enter_context(name_server(previous, *NEVER_SCAN))
        new, new_client = stack.enter_context(name_server(THIS, *NEVER_SCAN))
        stack.enter_context(Agent(joined(old, new), topics=topics))
        for client in (old_client, new_client):
            eventually(client.addrs, lambda addrs: addrs == {0: ADDR})
        assert topics_of(old_client) == topics_of(new_client)
        result = CliRunner().invoke(app, ["diff", "--namesrv", joined(old, new)])
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
def test_a_data_directory_of_one_version_is_taken_over_by_the_other(
    previous: Environment, tmp_path: Path, direction: str
) -> None:
    first, second = (previous, THIS) if direction == "upgrade" else (THIS, previous)
    flags = ("--data-dir", str(tmp_path / "data"), "--snapshot-interval-millis", "10", *NEVER_SCAN)
    with name_server(first, *flags) as (server, client):
        client.registration.RegisterBroker(registration(), timeout=TIMEOUT)
        client.admin.PutKvConfig(
            admin_service_pb2.PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key=TOPIC, value="broker-a:4"),
            timeout=TIMEOUT,
        )
        client.admin.WipeWritePermOfBroker(
            admin_service_pb2.WipeWritePermOfBrokerRequest(broker_name="broker-a", force=True), timeout=TIMEOUT
        )
        left = client.route()
        assert server.terminate() == 0
    with name_server(second, *flags) as (_, client):
        found = client.route()
        assert found is not None
        assert left is not None
        assert found.queue_datas == left.queue_datas, "no write permission: the operator took it"
        assert [broker.broker_addr for broker in found.broker_datas[0].broker_addrs] == [ADDR]
        request = admin_service_pb2.GetKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key=TOPIC)
        assert client.admin.GetKvConfig(request, timeout=TIMEOUT).value == "broker-a:4"
