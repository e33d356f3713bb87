"""A fleet whose routes are watched, without streams and without a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.policy import Behaviour
from namesrv.core.slices import run_steps
from namesrv.core.watch.hub import ChangeReader, RouteWatch, WatchHub
from namesrv.core.watch.messages import WatchMessages
from namesrv.core.watch.subscription import Subscription
from tests.support.core_fleet import SMALL_FLEETS, Fleet


class WatchedFleet(Fleet):
    """A fleet whose routes are watched."""

    def __init__(self, behaviour: Behaviour = SMALL_FLEETS, max_pending: int = 1_000_000) -> None:
        super().__init__(behaviour)
        self.is_warm = True
        self.start_watching(max_pending)

    def start_watching(self, max_pending: int = 10) -> None:
        """Has no watches yet."""
        self.hub = WatchHub(self.state, max_pending=max_pending)
        self.messages = WatchMessages(self.state, self.hub, lambda: self.is_warm)

    def watch(
        self,
        *topics: str,
        prefixes: Iterable[str] = (),
        zone: str | None = None,
        after: int | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> RouteWatch:
        watch = RouteWatch(wake, Subscription(frozenset(topics), tuple(prefixes), zone))
        run_steps(self.hub.read_changes())
        run_steps(self.hub.join(watch))
        run_steps(self.hub.read_changes())
        run_steps(self.hub.fill(watch) if after is None else self.hub.catch_up(watch, after))
        return watch

    def message(self, watch: RouteWatch) -> pb.WatchTopicRoutesResponse | None:
        """The next message; None if there is none."""
        run_steps(self.hub.read_changes())
        encoded = self.messages.next_message(watch)
        return None if encoded is None else pb.WatchTopicRoutesResponse.FromString(encoded)

    def told(self, watch: RouteWatch) -> dict[str, pb.TopicRouteChange]:
        """The changes of the next message, which is the last for now."""
        message = self.message(watch)
        assert message is not None
        assert message.bookmark
        assert message.header == self.state.header()
        assert self.message(watch) is None
        return {change.topic: change for change in message.changes}

    def last_of(self, watch: RouteWatch) -> pb.WatchTopicRoutesResponse:
        """The last message for now."""
        last = None
        while message := self.message(watch):
            last = message
        assert last is not None
        return last

    def woken(self) -> list[ChangeReader]:
        run_steps(self.hub.read_changes())
        return self.hub.take_to_wake()


def reasons(change: pb.TopicRouteChange) -> list[tuple[str, str]]:
    return [
        (gone.broker_addr, route_data_pb2.RemovalReason.Name(gone.reason).removeprefix("REMOVAL_REASON_"))
        for gone in change.removals
    ]
