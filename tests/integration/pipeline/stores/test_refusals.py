"""What an S3 store refuses, or does not do in time: one line, the documented exit code, and nothing changed."""

from __future__ import annotations

import pytest
import s3fs
from typer.testing import CliRunner, Result

from route_pipeline.commands import app
from route_pipeline.log.compaction import CompactionError, compact
from route_pipeline.log.protocol.route_log import RouteLog
from route_pipeline.log.protocol.writer import LogWriter
from route_pipeline.stores import remote
from route_pipeline.stores.store import StoreRefusedError, StoreUnavailableError
from tests.support.fakes.cutting_proxy import STUCK, CuttingProxy
from tests.support.programs.s3_server import client, forget_clients
from tests.support.routes.log_rows import append, revisions_of

pytestmark = pytest.mark.slow


def ingest(place: str) -> Result:
    return CliRunner().invoke(app, ["ingest", "--namesrv", "127.0.0.1:1", "--out", place])


REFUSALS = {
    "no right to write": ((403, "AccessDenied"), "PUT", 2, "no right to it: AccessDenied"),
    "no right to read": ((403, "AccessDenied"), "GET", 2, "no right to it: AccessDenied"),
    "credentials that have ended": ((400, "ExpiredToken"), "", 2, "ExpiredToken: renew the credentials"),
    "a wrong key": ((403, "SignatureDoesNotMatch"), "", 2, "look at the credentials"),
    "a clock that is off": ((403, "RequestTimeTooSkewed"), "", 2, "set this machine's clock"),
    "a wrong region": ((400, "AuthorizationHeaderMalformed"), "", 2, "look at the region (AWS_REGION)"),
    "a server that fails": ((503, "ServiceUnavailable"), "", 1, "cannot be reached: ServiceUnavailable"),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_store_that_refuses_is_told_in_one_line_before_spark_starts(
    proxy: CuttingProxy, s3_server: str, bucket: str, refusal: str
) -> None:
    answer, of_method, exit_code, problem = REFUSALS[refusal]
    proxy.fate = lambda method, _path: answer if of_method in {"", method} else None
    result = ingest(f"s3://{bucket}/log")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (exit_code, "", 1), result.stderr
    assert problem in result.stderr
    assert client(s3_server).find(bucket) == []


def test_credentials_that_end_between_two_batches_cost_the_second_and_nothing_else(
    proxy: CuttingProxy, bucket: str
) -> None:
    log = RouteLog.create(f"s3://{bucket}/log")
    writer = LogWriter(log)
    append(writer, 1)
    append(writer, 2)
    proxy.fate = lambda method, path: (400, "ExpiredToken") if method == "PUT" and "_commits" in path else None
    with pytest.raises(StoreRefusedError, match="ExpiredToken: renew the credentials") as caught:
        append(writer, 3)
    assert "\n" not in str(caught.value)
    with pytest.raises(CompactionError, match="renew the credentials"):
        compact(log)
    assert revisions_of(log) == [1, 2]
    proxy.fate = lambda _method, _path: None
    append(writer, 3)
    assert revisions_of(log) == [1, 2, 3]


def test_a_store_that_does_not_answer_is_given_up_in_bounded_time(
    proxy: CuttingProxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RouteLog.create(f"s3://{bucket}/log")
    monkeypatch.setitem(remote._OPTIONS["s3"]["config_kwargs"], "read_timeout", 0.2)
    forget_clients()
    proxy.fate = lambda _method, _path: STUCK
    with pytest.raises(StoreUnavailableError, match=r"cannot be reached: Read timeout on endpoint URL") as caught:
        log.state()
    assert "\n" not in str(caught.value)
    attempts = len(proxy.met)
    assert attempts == s3fs.S3FileSystem.retries
    assert attempts * (remote.CONNECT_SECONDS + remote.ANSWER_SECONDS) < 150
