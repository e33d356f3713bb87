"""The front: the listener of RocketMQ's protocol, and what its requests are answered from."""

from __future__ import annotations

from dataclasses import dataclass

from groundwork.program import descriptors_of_listener
from groundwork.shares import Shares
from namesrv.app.access import Authorizer
from namesrv.app.channels import ChannelStreams
from namesrv.app.cluster_test import ClusterTest
from namesrv.app.counters import FrontCounter, RegistrationCounter
from namesrv.app.lookup_clients import LookupClients
from namesrv.app.worker import Worker
from namesrv.app.writer import TableWriter
from namesrv.core.routes import Routes
from namesrv.core.state import RouteState
from namesrv.core.warm_up import WarmUp
from namesrv.grpc_api.admin import AdminChanges, AdminQueries
from namesrv.remoting.caller import Gate, Grade
from namesrv.remoting.calls import Calls, OperatorChanges, RegistrationCalls, calls_of
from namesrv.remoting.limits import MAX_CONNECTIONS
from namesrv.remoting.listener import RemotingListener
from namesrv.remoting.served import Served
from namesrv.remoting.tls import RemotingTls
from namesrv.settings import NamesrvSettings


@dataclass(frozen=True, slots=True)
class FrontChanges:
    """What a front changes the tables through."""

    routes: Routes
    writer: TableWriter
    channels: ChannelStreams
    registrations: RegistrationCounter
    admin: AdminChanges


class RemotingFront:
    """RocketMQ's protocol beside gRPC. Must be made inside the event loop that runs it."""

    def __init__(self, settings: NamesrvSettings, authorizer: Authorizer | None, counter: FrontCounter) -> None:
        """Takes the port.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
            CertificateError: The certificates cannot be used.
        """
        endpoint, files, mode = settings.remoting_endpoint, settings.listener_files(), settings.remoting_tls_mode
        assert endpoint is not None, "it is made where it listens"
        tls = RemotingTls(files) if files is not None and mode != "disabled" else None
        self._gate = Gate(map(Grade, settings.remoting_allow.split(",")), authorizer)
        self._listener = RemotingListener(
            endpoint,
            Calls({}, {}),
            counter,
            tls=tls,
            tls_mode=mode,
            slow_reader_seconds=settings.slow_reader_timeout_millis / 1000,
            shares=Shares(
                "connections of RocketMQ's protocol",
                min(MAX_CONNECTIONS, descriptors_of_listener()),
                settings.share_rules,
            ),
        )
        self.endpoint = self._listener.endpoint

    def serve(
        self,
        state: RouteState,
        warm_up: WarmUp,
        queries: AdminQueries,
        reader: Worker,
        *,
        clients: LookupClients,
        product_env: ClusterTest | None,
        changes: FrontChanges,
    ) -> None:
        """Answers from these from now on. Callers must call it before ``run``.

        Args:
            clients: Notes who looks topics up.
            product_env: Is asked for topics that are unknown here; None: nobody is.
        """
        gate = self._gate
        self._listener.calls = calls_of(
            Served(state, warm_up, reader),
            queries,
            gate,
            product_env=product_env,
            clients=clients,
            registrations=RegistrationCalls(
                changes.routes, changes.writer, changes.channels, changes.registrations, gate
            ),
            changes=OperatorChanges(state, changes.admin, gate),
        )

    async def run(self) -> None:
        """Takes connections. Runs until cancelled."""
        await self._listener.run()

    async def close(self, grace_seconds: float) -> None:
        """Ends all connections, after what is on its way has been sent or the time is over."""
        await self._listener.close(grace_seconds)
