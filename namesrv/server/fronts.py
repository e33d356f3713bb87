"""Fronts: listeners of other protocols than gRPC, which answer from the same tables through the same stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from groundwork.endpoints import Endpoint
from namesrv.app.access import Authorizer
from namesrv.app.channels import ChannelStreams
from namesrv.app.cluster_test import ClusterTest
from namesrv.app.counters import FrontCounter, RegistrationCounter
from namesrv.app.writer import TableWriter
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.grpc_api.admin import AdminChanges, AdminQueries
from namesrv.server.listener import CannotListen
from namesrv.settings import NamesrvSettings


@dataclass(frozen=True, slots=True)
class FrontChanges:
    """What a front changes the tables through."""

    writer: TableWriter
    channels: ChannelStreams
    registrations: RegistrationCounter
    admin: AdminChanges


@dataclass(frozen=True, slots=True)
class FrontParts:
    """What a front answers from."""

    manager: RouteInfoManager
    warm_up: WarmUp
    queries: AdminQueries
    product_env: ClusterTest | None
    """Is asked for topics that are unknown here; None: nobody is."""
    changes: FrontChanges | None
    """None on a copy, which changes nothing."""
    leader: Callable[[], str] = str
    """On a copy: whom it follows now."""


class Front(Protocol):
    """A listener of another protocol. It answers that it is not ready until it has something to answer from."""

    endpoint: Endpoint

    def serve(self, parts: FrontParts) -> None:
        """Answers from these from now on."""

    async def run(self) -> None:
        """Takes connections. Runs until cancelled."""

    async def close(self, grace_seconds: float) -> None:
        """Ends all connections, after what is on its way has been sent or the time is over."""


MakeFront = Callable[[NamesrvSettings, Authorizer | None, FrontCounter], Front]
"""Makes a front that listens already. Raises OSError, or ValueError for certificates."""


def front_on(
    make: MakeFront | None, settings: NamesrvSettings, authorizer: Authorizer | None, counter: FrontCounter
) -> Front | None:
    """Makes the front, if there is one. Raises CannotListen."""
    if make is None:
        return None
    try:
        return make(settings, authorizer, counter)
    except OSError as error:
        raise CannotListen(f"setting remoting_listen: {error}") from error
    except ValueError as error:
        raise CannotListen(str(error)) from error
