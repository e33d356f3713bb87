"""The name servers that the broker is registered with: always those of the list."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from namesrv_api.v1 import route_data_pb2

from broker_agent.fan_out.broker_outer_api import BrokerOuterAPI
from broker_agent.target.namesrv_target import NamesrvTarget
from groundwork.endpoints import Endpoint

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NamesrvTargets:
    """Makes a target for each name server that comes, and has the broker unregistered from each that goes."""

    def __init__(
        self,
        outer_api: BrokerOuterAPI,
        make: Callable[[Endpoint], NamesrvTarget],
        identity: Callable[[], route_data_pb2.BrokerIdentity],
        unregister_seconds: float,
        *,
        forget: Callable[[Endpoint], None] = lambda _: None,
    ) -> None:
        """Starts without any.

        Args:
            outer_api: What calls them.
            make: Makes a target.
            identity: The broker, to be unregistered.
            unregister_seconds: Time for that.
            forget: Told of each name server that has gone.
        """
        self._outer_api = outer_api
        self._make = make
        self._identity = identity
        self._unregister_seconds = unregister_seconds
        self._forget = forget
        self._lock = threading.Lock()
        self._closed = False

    def take(self, endpoints: tuple[Endpoint, ...], *, open_now: bool = True) -> None:
        """Makes exactly these the name servers to call from now on. Does not wait for any of them.

        Args:
            endpoints: All of them.
            open_now: Open a channel to each new one, which registers the broker with it.
        """
        with self._lock:
            if self._closed:
                return
            known = {target.endpoint: target for target in self._outer_api.targets}
            gone = [target for endpoint, target in known.items() if endpoint not in endpoints]
            come = [self._make(endpoint) for endpoint in endpoints if endpoint not in known]
            for target in come:
                self._outer_api.add(target)
            for target in gone:
                self._outer_api.remove(target, self._identity(), timeout_seconds=self._unregister_seconds)
                self._forget(target.endpoint)
        for target in come if open_now else ():
            target.open()
        if open_now:
            _log.info(
                "name_servers_changed",
                come=[str(target.endpoint) for target in come],
                gone=[str(target.endpoint) for target in gone],
            )

    def close(self) -> None:
        """Ends all connections. Name servers that come later are not taken any more."""
        with self._lock:
            self._closed = True
            targets = (*self._outer_api.targets, *self._outer_api.leaving)
        closing = [threading.Thread(target=target.close, name="broker-agent-closing") for target in targets]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def sweep(self) -> None:
        """Ends calls and attempts that have waited for too long. Called once a second."""
        for target in self._outer_api.targets:
            target.sweep()
