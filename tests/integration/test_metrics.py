"""What a name server tells Prometheus and whoever asks over HTTP whether it is alive and ready."""

from __future__ import annotations

import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from namesrv_api.v1 import route_service_pb2
from prometheus_client.parser import text_string_to_metric_families

from tests.processes import BIN, NamesrvProcess, eventually
from tests.registrations import registration

PACKAGE = "namesrv_api.v1"


def get(namesrv: NamesrvProcess, path: str) -> tuple[int, str]:
    endpoint = namesrv.wait_for("namesrv_started")["metrics"]
    try:
        with urllib.request.urlopen(f"http://{endpoint}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(namesrv: NamesrvProcess) -> dict[tuple[str, ...], float]:
    """Values by name and label values."""
    status, text = get(namesrv, "/metrics")
    assert status == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_tables_changes_and_calls_are_counted(engine: str) -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0", engine=engine) as namesrv, namesrv.connect() as client:
        channel = client.open_channel()
        client.registration.RegisterBroker(registration(channel_id=channel.id), timeout=client.TIMEOUT)
        seen = samples(namesrv)
        assert (seen["namesrv_live_brokers",], seen["namesrv_topics",], seen["namesrv_warm",]) == (1, 1, 1)
        assert seen["namesrv_changes_total", "RegisterBroker"] == 1
        channel.close()
        eventually(lambda: samples(namesrv).get(("namesrv_removals_total", "CHANNEL_CLOSED")), lambda count: count == 1)
        request = route_service_pb2.GetTopicRouteRequest(topic="Nothing")
        client.failure(f"/{PACKAGE}.RouteService/GetTopicRoute", request)
        method = f"{PACKAGE}.RouteService/GetTopicRoute"
        ended = ("grpc_server_call_duration_seconds_count", method, "NOT_FOUND")
        # A call is counted as ended when its answer has left.
        seen = eventually(lambda: samples(namesrv), lambda seen: seen.get(ended) == 1)
        assert seen["grpc_server_call_started_total", method] == 1
        registered = f"{PACKAGE}.RegistrationService/RegisterBroker"
        assert seen["grpc_server_call_duration_seconds_count", registered, "OK"] == 1
        assert seen["process_open_fds",] > 0


def test_alive_and_ready_are_told_apart(tmp_path: Path) -> None:
    flags = ("--metrics-listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--warm-up-millis", "3600000")
    with NamesrvProcess(*flags) as namesrv:
        assert get(namesrv, "/healthz") == (200, "ok\n")
        assert get(namesrv, "/readyz") == (503, "warming: brokers of the time before may be missing\n")
        assert get(namesrv, "/")[0] == 404
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0") as namesrv:
        assert get(namesrv, "/readyz") == (200, "ok\n")


def test_callers_that_send_nothing_do_not_keep_others_out(engine: str) -> None:
    with NamesrvProcess("--metrics-listen", "127.0.0.1:0", engine=engine) as namesrv:
        host, port = namesrv.wait_for("namesrv_started")["metrics"].split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(40)]
        try:
            # Those over the bound are turned away at once; the others are, when their time is up.
            eventually(lambda: answers(namesrv))
        finally:
            for connection in silent:
                connection.close()
        assert namesrv.terminate() == 0


def answers(namesrv: NamesrvProcess) -> bool:
    try:
        return get(namesrv, "/healthz")[0] == 200
    except OSError:
        return False


def test_an_address_that_is_none_or_is_taken_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert (
            refusal(listen) == f"namesrv: setting metrics_listen: cannot listen on {listen}: Address already in use\n"
        )
    assert "setting metrics_listen: address 'nowhere' has no port" in refusal("nowhere")


def refusal(listen: str) -> str:
    done = subprocess.run(
        [str(BIN / "namesrv"), "serve", "--listen", "127.0.0.1:0", "--metrics-listen", listen],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    return done.stderr
