"""Fronts: listeners of other protocols than gRPC, which answer from the same tables through the same stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from groundwork.endpoints import Endpoint
from namesrv.config.settings import NamesrvSettings
from namesrv.core.registrations import RouteInfoManager
from namesrv.core.warm_up import WarmUp
from namesrv.server.auth.admission import Authorizer
from namesrv.server.background.channel_streams import ChannelStreams
from namesrv.server.background.table_writer import TableWriter
from namesrv.server.counters import FrontCounter, RegistrationCounter
from namesrv.server.listener import CannotListen
from namesrv.server.services.admin.servicer import AdminChanges, AdminQueries
from namesrv.server.services.route.cluster_test import ClusterTest


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
    make: MakeFront | None, settings: NamesrvSettings, doorkeeper: Authorizer | None, counter: FrontCounter
) -> Front | None:
    """Makes the front, if there is one. Raises CannotListen."""
    if make is None:
        return None
    try:
        return make(settings, doorkeeper, counter)
    except OSError as error:
        raise CannotListen(f"setting remoting_listen: {error}") from error
    except ValueError as error:
        raise CannotListen(str(error)) from error
