"""Commands that collect an answer give it up where a name server sends too much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast
from unittest import mock

import pytest
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.client.namesrv_client import NamesrvClient
from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import CallError
from nsctl import held


class FalseNameServer:
    """Sends three rows wherever it is asked."""

    endpoint = Endpoint("127.0.0.1", 9876)
    timeout_seconds = 1.0
    route = mock.Mock()

    def stream(self, *_: object) -> Iterator[pb.StreamRouteSnapshotResponse]:
        lives = [route_data_pb2.BrokerLiveInfo(broker_addr=str(number)) for number in range(3)]
        yield pb.StreamRouteSnapshotResponse(chunk=pb.SnapshotChunk(live_brokers=lives))

    def pages(self, *_: object) -> Iterator[object]:
        yield pb.GetRouteDigestResponse(brokers=[pb.BrokerDigest(broker_id=number) for number in range(3)])


@pytest.mark.parametrize(("collect", "what"), [(held.live_brokers, "3 live brokers"), (held.digests, "3 digests")])
def test_an_answer_over_its_limit_is_an_error_that_names_the_server(
    collect: Callable[[NamesrvClient], object], what: str
) -> None:
    with mock.patch.object(held, "MAX_BROKERS", 2), pytest.raises(CallError) as caught:
        collect(cast("NamesrvClient", FalseNameServer()))
    assert str(caught.value) == f"127.0.0.1:9876: INTERNAL: sends too much: {what} so far, over the limit of 2"
