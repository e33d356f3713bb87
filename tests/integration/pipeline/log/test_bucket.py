"""The log in a bucket whose answers are lost, and in one that lets writers overwrite each other."""

from __future__ import annotations

import pytest

from route_pipeline.log.place import Place
from route_pipeline.log.route_log import ConflictError, RouteLog
from tests.support.programs.s3_proxy import s3_proxy
from tests.support.programs.s3_server import s3_client
from tests.support.routes.log_rows import append, revisions_of

pytestmark = pytest.mark.slow


def test_a_batch_is_there_once_although_answers_of_its_commit_are_lost(s3_server: str, bucket: str) -> None:
    with s3_proxy(s3_server) as endpoint:
        log = RouteLog(Place(f"s3://{bucket}/log", {"AWS_ENDPOINT_URL": endpoint}))
        assert [append(log, revision) for revision in range(1, 7)] == [0, 1, 2, 3, 4, 5]
    assert revisions_of(Place(f"s3://{bucket}/log")) == [1, 2, 3, 4, 5, 6]


def test_a_writer_ends_whose_commit_the_bucket_let_another_overwrite(s3_server: str, bucket: str) -> None:
    log, other = (RouteLog(Place(f"s3://{bucket}/{name}")) for name in ("log", "other"))
    append(log, 1)
    append(other, 2)
    commit = f"changes/_delta_log/{log.table.version():020}.json"
    store = s3_client(s3_server)
    store.copy_object(Bucket=bucket, Key=f"log/{commit}", CopySource=f"{bucket}/other/{commit}")
    with pytest.raises(ConflictError, match=r"the bucket must refuse that \(If-None-Match\)$"):
        append(log, 3)
