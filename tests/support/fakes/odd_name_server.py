"""A name server that is UNAVAILABLE, or takes three seconds for each answer. Run as a program by the tests."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator

import grpc
from namesrv_api.v1 import registration_service_pb2 as pb

from groundwork.grpc_errors import RichError
from tests.support.fakes.registering_name_server import FakeNameServer, refuse

SLOW_SECONDS = 3.0


class UnavailableNameServer(FakeNameServer):
    """Is there, and says that it is not."""

    def OpenChannel(  # noqa: N802
        self, request: pb.OpenChannelRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.OpenChannelResponse]:
        refuse(context, RichError(grpc.StatusCode.UNAVAILABLE, "not now", "OVERLOADED", "namesrv"))


class SlowNameServer(FakeNameServer):
    """Answers as it should, but for the time."""

    def RegisterBroker(  # noqa: N802
        self, request: pb.RegisterBrokerRequest, context: grpc.ServicerContext
    ) -> pb.RegisterBrokerResponse:
        threading.Event().wait(SLOW_SECONDS)
        return super().RegisterBroker(request, context)

    def QueryDataVersion(  # noqa: N802
        self, request: pb.QueryDataVersionRequest, context: grpc.ServicerContext
    ) -> pb.QueryDataVersionResponse:
        threading.Event().wait(SLOW_SECONDS)
        return super().QueryDataVersion(request, context)


KINDS = {"unavailable": UnavailableNameServer, "slow": SlowNameServer}


def main(kind: str) -> None:
    server = KINDS[kind](kind)
    sys.stderr.write(json.dumps({"event": "odd_name_server_started", "listen": str(server.endpoint)}) + "\n")
    sys.stderr.flush()
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
