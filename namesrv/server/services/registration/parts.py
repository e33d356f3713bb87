"""Registrations that travel in several messages: read part by part, and staged until the last one is there."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from namesrv_api.v1 import registration_service_pb2 as pb

from groundwork.shares import MACHINE, Sharer, Shares
from namesrv.config.limits import MAX_REGISTRATION_PARTS, STAGED_PART_SECONDS
from namesrv.core.errors import InvalidField, NeedFullRegistration
from namesrv.core.liveness import ChannelTable
from namesrv.core.model import DataVersion, LiveKey, Registration
from namesrv.core.slices import Sliced
from namesrv.server.auth.fair_shares import FairShares
from namesrv.server.services.registration.requests import TopicsRead, check_given_channel, read_topics


@dataclass(slots=True)
class _Staged:
    data_version: DataVersion
    count: int
    sharer: Sharer
    taken: int = 0
    """Topics and queues of mappings that count."""
    deadline: float = 0.0
    topic_configs: TopicsRead = field(default_factory=TopicsRead)
    """Of all parts so far."""
    parts: int = 0


class RegistrationParts:
    """Parts that wait for the ones after them, by channel and broker; bounded in topics and in time."""

    def __init__(self, channels: ChannelTable, monotonic: Callable[[], float], topics: Shares | None = None) -> None:
        self._channels = channels
        self._monotonic = monotonic
        self._topics = topics or FairShares.of().staged_topics
        self._staged: dict[tuple[str, LiveKey], _Staged] = {}

    def add(
        self,
        registration: Registration,
        request: pb.RegisterBrokerRequest,
        known_topics: Container[str],
        sharer: Sharer = MACHINE,
    ) -> Sliced[TopicsRead | int]:
        """Reads a part in steps. One that is refused takes those before it along: its sender begins again.

        Args:
            registration: What the part says of all but its topics.
            request: The part.
            known_topics: Names that have been checked before.
            sharer: Whose share of what is staged the first part takes, and those after it.

        Returns:
            All topic configurations once the last part is there; before, the number of parts staged.

        Raises:
            ChannelGone: Its channel is not open, or ended meanwhile.
            InvalidField: The part's numbers are wrong, or a topic is.
            NeedFullRegistration: It does not follow what is staged; start again from part 0.
            LimitExceeded: It has too many topics, with the parts before it, or too many are staged, of its caller or
                of all.
        """
        check_given_channel(request.channel_id, "a registration in parts needs a channel")
        self._channels.check_open(request.channel_id)
        self.drop_overdue()
        index, count = _checked_numbers(request)
        place, data_version = (request.channel_id, registration.live_key), registration.data_version
        staged = self._drop(place)  # not to be gone on with from elsewhere while this is read
        if index == 0:
            staged = _Staged(data_version, count, sharer)
        if staged is None or (staged.parts, staged.count, staged.data_version) != (index, count, data_version):
            raise NeedFullRegistration(f"part {index} of {count} does not follow what is staged; start from part 0")
        yield from read_topics(request.topic_configs, known_topics, staged.topic_configs)
        self._channels.check_open(request.channel_id)
        staged.parts += 1
        if staged.parts == count:
            return staged.topic_configs
        mapped_queues = staged.topic_configs.mapped_queues
        amount = max(1, len(staged.topic_configs) + mapped_queues)  # one that names no topic takes a place, too
        self._topics.take(staged.sharer, amount)
        staged.taken = amount
        staged.deadline = self._monotonic() + STAGED_PART_SECONDS
        self._staged[place] = staged
        return staged.parts

    def drop_overdue(self) -> None:
        """Drops what has waited too long for its next part."""
        now = self._monotonic()
        while self._staged:
            place, oldest = next(iter(self._staged.items()))  # each is put behind those before it
            if oldest.deadline >= now:
                return
            self._drop(place)

    def drop_channel(self, channel_id: str) -> None:
        """Drops what is staged on a channel that has ended."""
        for place in [place for place in self._staged if place[0] == channel_id]:
            self._drop(place)

    def _drop(self, place: tuple[str, LiveKey]) -> _Staged | None:
        staged = self._staged.pop(place, None)
        if staged is not None:
            self._topics.give_back(staged.sharer, staged.taken)
            staged.taken = 0
        return staged


def _checked_numbers(request: pb.RegisterBrokerRequest) -> tuple[int, int]:
    part = request.part
    if not 1 <= part.count <= MAX_REGISTRATION_PARTS:
        raise InvalidField("part.count", f"is {part.count}, must be 1 to {MAX_REGISTRATION_PARTS}")
    if not part.HasField("index") or not 0 <= part.index < part.count:
        raise InvalidField("part.index", f"is {part.index}, must be set and 0 to {part.count - 1}")
    return part.index, part.count
