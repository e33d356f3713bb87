"""The front: the listener of RocketMQ's protocol, and what its requests are answered from."""

from __future__ import annotations

from groundwork.program import descriptors_of_listener
from groundwork.shares import Shares
from namesrv.app.access import Authorizer
from namesrv.app.counters import FrontCounter
from namesrv.core.errors import RegistryWarming
from namesrv.remoting.caller import Caller, Gate, Grade
from namesrv.remoting.calls import Calls, OperatorChanges, RegistrationCalls, calls_of
from namesrv.remoting.limits import MAX_CONNECTIONS
from namesrv.remoting.listener import RemotingListener
from namesrv.remoting.served import Served
from namesrv.remoting.tls import RemotingTls
from namesrv.remoting.wire.codes import RequestCode
from namesrv.remoting.wire.headers import Request
from namesrv.server.fronts import FrontParts
from namesrv.settings import NamesrvSettings


class RemotingFront:
    """RocketMQ's protocol beside gRPC. Must be made inside the event loop that runs it."""

    def __init__(self, settings: NamesrvSettings, authorizer: Authorizer | None, counter: FrontCounter) -> None:
        """Takes the port.

        Args:
            settings: Where to listen, with what TLS, and what callers may do.
            authorizer: Knows the permits; None: there are none.
            counter: Counts connections and requests.

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
            _NOT_READY,
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

    def serve(self, parts: FrontParts) -> None:
        """Answers from these from now on."""
        served, changes, gate = Served(parts.manager, parts.warm_up), parts.changes, self._gate
        registrations, operators = None, None
        if changes is not None:
            registrations = RegistrationCalls(
                parts.manager, changes.writer, changes.channels, changes.registrations, gate
            )
            operators = OperatorChanges(parts.manager, changes.admin, gate)
        self._listener.calls = calls_of(
            served,
            parts.queries,
            gate,
            product_env=parts.product_env,
            registrations=registrations,
            changes=operators,
            leader=None if changes is not None else parts.leader,
        )

    async def run(self) -> None:
        """Takes connections. Runs until cancelled."""
        await self._listener.run()

    async def close(self, grace_seconds: float) -> None:
        """Ends all connections, after what is on its way has been sent or the time is over."""
        await self._listener.close(grace_seconds)


def _not_ready(_request: Request, _caller: Caller) -> bytes:
    raise RegistryWarming("anything")


_NOT_READY = Calls(dict.fromkeys(RequestCode, _not_ready), {})
"""Of a copy that has not read its leader's tables yet."""
