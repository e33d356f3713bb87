from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from typer.testing import CliRunner, Result

from broker_agent.cli import app
from tests.support.programs.processes import TOPICS

FLAGS = {
    "--broker-name": "broker-a",
    "--broker-id": "0",
    "--broker-addr": "127.0.0.1:10911",
    "--namesrv": "127.0.0.1:9876",
    "--topics": str(TOPICS),
}


@pytest.fixture(autouse=True)
def _no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's logs are set up once for the whole process, and would outlive the test."""
    monkeypatch.setattr("namesrv_common.process.settings_cli.configure_logs", lambda *_: None)


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env=env)


def serve(env: dict[str, str] | None = None, *more: str, **changes: str | None) -> Result:
    flags = FLAGS | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    pairs = [text for flag, value in flags.items() if value is not None for text in (flag, value)]
    return run("serve", *pairs, *more, env=env)


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("broker_id", "x", "setting broker_id: Input should be a valid integer"),
        ("broker_addr", "127.0.0.1", "setting broker_addr: address '127.0.0.1' has no port: write host:port"),
        ("ha_server_addr", "h:0", "setting ha_server_addr: address 'h:0' has port '0', not a number from 1 to 65535"),
        ("broker_name", "a\tb", r"setting broker_name: 'a\tb' has characters that are not printable"),
        ("cluster", "c" * 256, f"setting cluster: {'c' * 40!r}... has 256 bytes, at most 255"),
        ("broker_permission", "8", "setting broker_permission: Input should be less than or equal to 7 (got '8')"),
        ("namesrv", "file:/no/list", "setting namesrv: /no/list: No such file or directory"),
        ("probe", "udp", "setting probe: Input should be 'tcp' or 'none' (got 'udp')"),
        ("metrics_listen", "nowhere", "setting metrics_listen: address 'nowhere' has no port: write host:port"),
        ("fast_listen", "10918", "setting fast_listen: address '10918' has no port: write host:port"),
        ("topics", "/no/topics.json", "/no/topics.json: No such file or directory"),
        ("listen", "127.0.0.1", "setting listen: address '127.0.0.1' has no port: write host:port"),
        ("register_name_server_period_millis", "0", "setting register_name_server_period_millis: "),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2(flag: str, value: str | None, expected: str) -> None:
    result = serve(None, **{flag: value})
    assert result.exit_code == 2
    assert result.stderr.startswith(f"broker-agent: {expected}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_environment_variable_is_a_plain_list_and_a_flag_wins_over_it() -> None:
    env = {"BROKER_AGENT_NAMESRV": "a:1;b:2", "BROKER_AGENT_CLUSTER": "c1"}
    from_env = serve(env, "--print-config", namesrv=None)
    assert {'namesrv = ["a:1", "b:2"]', 'cluster = "c1"'} <= set(from_env.stdout.splitlines())
    from_flag = serve(env, "--namesrv", "d:4", "--print-config", cluster="c2")
    assert {'namesrv = ["127.0.0.1:9876", "d:4"]', 'cluster = "c2"'} <= set(from_flag.stdout.splitlines())


def test_a_health_check_of_a_server_that_is_no_agent_fails() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    result = run("healthcheck", env={"BROKER_AGENT_FAST_LISTEN": endpoint})
    assert result.exit_code == 1
    assert result.stderr.startswith(f"broker-agent: {endpoint}: UNIMPLEMENTED")
    server.stop(None)


def test_a_health_check_finds_the_agent_by_the_brokers_port() -> None:
    asked = [
        run("healthcheck"),
        run("healthcheck", env={"BROKER_AGENT_BROKER_ADDR": "10.0.0.1:3"}),
        run("healthcheck", "--broker-addr", "10.0.0.1:3", "--listen", "127.0.0.1:4"),
        run("healthcheck", "--fast-listen", "127.0.0.1:1"),
    ]
    ports = [10918, 10, 2, 1]
    assert [result.stderr.partition(" UNAVAILABLE")[0] for result in asked] == [
        f"broker-agent: 127.0.0.1:{port}:" for port in ports
    ]
    assert {result.exit_code for result in asked} == {1}
    result = run("healthcheck", "--broker-addr", "here")
    assert (result.exit_code, result.stderr.partition(": address")[0]) == (2, "broker-agent: --broker-addr")
