"""A state machine of watches that read whenever they like, next to everything that may happen to a name server.

At each bookmark a watch holds exactly what lookups give, and it was told why each broker left.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core import pace, tables
from namesrv.core.model import QueueNumbers
from namesrv.core.pace import Sliced, run_steps
from namesrv.core.watch import messages as messages_module
from namesrv.core.watch.hub import RouteWatch, WatchHub
from namesrv.core.watch.messages import WatchMessages
from namesrv.core.watch.subscription import Subscription, SubscriptionChange
from tests.support.routes.watch_validators import Lookup, Route, WatchedStream, check_promises, last_bookmark
from tests.unit.namesrv.reference_inputs import TOPICS, TOPICS_KNOWN
from tests.unit.namesrv.reference_rules import SWITCHES, FleetPlace, TablesAgreeWithTheModelUnderTheGuard, places

WATCHED = (*TOPICS_KNOWN, "T5")
"""The last one never comes."""
_SUBSCRIPTIONS = st.builds(
    Subscription,
    st.frozensets(st.sampled_from(WATCHED), max_size=3),
    st.lists(st.sampled_from(["T", "T1", "U", ""]), max_size=2, unique=True).map(tuple),
    st.sampled_from([None, None, "z1"]),
).filter(lambda subscription: bool(subscription.name_count))


class Client:
    """Watches with breaks, and with topics that come and go."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        """What it wants."""
        self.in_flight = [subscription]
        """What its last bookmark covers, and what it asked for since."""
        self.watch: RouteWatch
        self.changing: Sliced[None] | None = None
        """A change of its topics that is under way."""
        self.streams: list[WatchedStream] = []
        self.routes: dict[str, Route] = {}
        self.at_bookmark: dict[str, Route] = {}

    def may_want(self, wanted: Subscription) -> bool:
        """Whether it adds no topic again before a bookmark has counted the removal of the topic."""
        left = [topic for topic in WATCHED if not self.subscription.has(topic)]
        return not any(wanted.has(topic) and any(some.has(topic) for some in self.in_flight) for topic in left)

    def request(self, epoch: str, revision: int | None) -> pb.WatchTopicRoutesRequest:
        subscription = self.watch.subscription
        request = pb.WatchTopicRoutesRequest(
            topics=sorted(subscription.topics), topic_prefixes=subscription.prefixes, zone_name=subscription.zone_name
        )
        if revision is not None:
            request.resume_after.epoch, request.resume_after.revision = epoch, revision
        return request

    def take(self, message: pb.WatchTopicRoutesResponse) -> None:
        self.streams[-1].messages.append(message)
        for change in message.changes:
            after = change.route if change.HasField("route") else None
            if self.subscription.zone_name is None:
                told = {(gone.cluster_name, gone.broker_name, gone.broker_addr) for gone in change.removals}
                lost = brokers_of(self.routes.get(change.topic)) - brokers_of(after)
                assert all((c, name, addr) in told or (c, name, "") in told for c, name, addr in lost), (lost, told)
                assert told.isdisjoint(brokers_of(after))
            self.routes[change.topic] = after
        if message.bookmark:
            self.in_flight = self.in_flight[self.in_flight.index(self.watch.subscription) :]
            self.routes = {topic: route for topic, route in self.routes.items() if self.watch.subscription.has(topic)}
            self.at_bookmark = dict(self.routes)


def brokers_of(route: Route) -> set[tuple[str, str, str]]:
    if route is None:
        return set()
    return {
        (data.cluster_name, data.broker_name, broker.broker_addr)
        for data in route.broker_datas
        for broker in data.broker_addrs
    }


class WatchesAgainstLookups(TablesAgreeWithTheModelUnderTheGuard):
    outcomes = TablesAgreeWithTheModelUnderTheGuard.outcomes - {"restarted"}
    # A restart would end all watches. Other machines compare the tables with the model after each step.
    the_name_server_restarts = followers_read = somebody_takes_a_snapshot_of_some_tables = None  # type: ignore[assignment]
    a_snapshot_holds_every_row = lists_agree = joined_routes_are_what_generated_code_encodes = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.clients: list[Client] = []
        self.telling: Sliced[None] | None = None
        self.lookups: list[Lookup] = []
        self.passing_over: Sliced[None] | None = None
        self.leaving: list[Sliced[None]] = []

    @initialize(
        switches=SWITCHES, places=places(1), topics=TOPICS, is_warm=st.booleans(),
        wanted=st.lists(_SUBSCRIPTIONS, min_size=1, max_size=3),
    )  # fmt: skip
    def start(
        self,
        switches: dict[str, bool],
        places: list[FleetPlace],
        topics: dict[str, QueueNumbers],
        is_warm: bool,
        wanted: list[Subscription],
    ) -> None:
        self.patch.setattr(tables, "UNUSED_PER_BROKER", 0)
        self.patch.setattr(messages_module, "MESSAGE_TOPICS", 2)
        self.patch.setattr(pace, "SLICE", 1)
        super().start(switches, places, topics, intents=[])
        self.is_warm = is_warm
        self.hub = WatchHub(self.state, max_pending=1_000)
        self.messages = WatchMessages(self.state, self.hub, lambda: self.is_warm)
        for subscription in wanted:
            self.clients.append(Client(subscription))
            self.open(self.clients[-1])

    @precondition(lambda self: not self.is_warm)
    @rule()
    def it_is_warm(self) -> None:
        self.is_warm = True
        self.telling = self.hub.add_absent()

    @rule()
    def some_are_told_what_is_absent(self) -> None:
        if self.telling is not None and next(self.telling, self) is self:
            self.telling = None

    def open(self, client: Client) -> None:
        point = last_bookmark(client.streams)
        revision = point[1] if point else None
        client.in_flight = [client.in_flight[0] if point else client.subscription]
        watch = RouteWatch(lambda: None, client.in_flight[0])
        if revision is not None:
            self.changes_are_passed_over()
        run_steps(self.hub.join(watch))
        if revision is None:
            run_steps(self.hub.fill(watch))
        else:
            self.changes_are_passed_over()
            run_steps(self.hub.catch_up(watch, revision))
        client.watch = watch
        client.routes = dict(client.at_bookmark) if point else {}
        client.streams.append(WatchedStream(client.request(self.state.identity.epoch, revision)))
        if watch.subscription != client.subscription:
            self.begin_to_change(client)

    def begin_to_change(self, client: Client) -> None:
        """Has the name server begin to apply what the client wants now."""
        client.in_flight.append(client.subscription)
        change = SubscriptionChange.between(client.watch.subscription, client.subscription)
        client.streams[-1].later.append(
            pb.WatchTopicRoutesRequest(
                topics=change.added.topics,
                topic_prefixes=change.added.prefixes,
                removed_topics=change.removed.topics,
                removed_topic_prefixes=change.removed.prefixes,
            )
        )
        client.changing = self.resubscribing(client.watch, change)

    def resubscribing(self, watch: RouteWatch, change: SubscriptionChange) -> Sliced[None]:
        yield from self.hub.begin_resubscribing(watch, change)
        self.changes_are_passed_over()
        yield from self.hub.end_resubscribing(watch, change)

    @rule(data=st.data(), wanted=_SUBSCRIPTIONS)
    def a_client_wants_other_topics(self, data: st.DataObject, wanted: Subscription) -> None:
        client = data.draw(st.sampled_from(self.clients))
        wanted = replace(wanted, zone_name=client.subscription.zone_name)
        if not client.may_want(wanted):
            return
        self.the_topics_of_a_client_have_changed(client)
        client.subscription = wanted
        self.begin_to_change(client)

    @rule(data=st.data())
    def some_topics_of_a_client_change(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        if client.changing is not None and next(client.changing, self) is self:
            client.changing = None

    def the_topics_of_a_client_have_changed(self, client: Client) -> None:
        if client.changing is not None:
            run_steps(client.changing)
            client.changing = None

    @rule()
    def changes_are_passed_over(self) -> None:
        run_steps(self.passing_over or self.hub.read_changes())
        self.passing_over = None
        run_steps(self.hub.read_changes())

    @rule()
    def some_of_a_change_is_passed_over(self) -> None:
        self.passing_over = self.passing_over or self.hub.read_changes()
        if next(self.passing_over, self) is self:
            self.passing_over = None

    @rule(data=st.data())
    def a_client_reads(self, data: st.DataObject) -> None:
        self.read(data.draw(st.sampled_from(self.clients)))

    @rule()
    def everybody_reads(self) -> None:
        while self.telling is not None:
            self.some_are_told_what_is_absent()
        self.changes_are_passed_over()
        for client in self.clients:
            self.the_topics_of_a_client_have_changed(client)
            while self.read(client):
                pass
            self.it_holds_what_lookups_give(client)

    def read(self, client: Client) -> bool:
        encoded = self.messages.next_message(client.watch)
        if encoded is None:
            return False
        message = pb.WatchTopicRoutesResponse.FromString(encoded)
        assert message.header == self.state.header()
        client.take(message)
        if message.bookmark:
            assert message.request_count == client.watch.request_count
            self.it_holds_what_lookups_give(client)
        return True

    def it_holds_what_lookups_give(self, client: Client) -> None:
        subscription = client.watch.subscription
        for topic in WATCHED:
            if not subscription.has(topic):
                continue
            route = self.lookup(topic, subscription.zone_name)
            if topic in client.routes:
                assert client.routes[topic] == route
            else:
                assert route is None
                assert topic not in subscription.topics or not self.is_warm or self.telling is not None
            if subscription.zone_name is None:
                self.lookups.append(Lookup(self.state.identity.epoch, self.state.revision, topic, route))

    def lookup(self, topic: str, zone_name: str | None) -> Route:
        encoded = self.state.route(topic, zone_name)
        return None if encoded is None else route_data_pb2.TopicRouteData.FromString(encoded)

    @rule(data=st.data())
    def a_client_breaks_off_and_resumes(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.changing = None
        self.leaving.append(self.hub.close(client.watch))
        self.open(client)

    @rule()
    def a_part_of_what_they_left_is_cleared_up(self) -> None:
        self.leaving = [steps for steps in self.leaving if next(steps, self) is None]

    def teardown(self) -> None:
        try:
            if self.clients:  # else the start has failed
                self.the_promises_were_kept()
        finally:
            self.patch.undo()

    def the_promises_were_kept(self) -> None:
        self.everybody_reads()
        for client in self.clients:
            assert client.at_bookmark == client.routes
            self.leaving.append(self.hub.close(client.watch))
        assert self.hub.pending_count == 0
        for steps in self.leaving:
            run_steps(steps)
        assert self.hub.name_count == 0
        check_promises(
            [client.streams for client in self.clients if client.subscription.zone_name is None], self.lookups
        )
