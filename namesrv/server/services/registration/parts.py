"""Registrations that travel in several messages: staged until the last part is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from namesrv_api.v1 import registration_service_pb2 as pb
from namesrv_api.v1 import route_data_pb2

from namesrv.config.limits import MAX_REGISTRATION_PARTS, MAX_STAGED_BYTES, STAGED_PART_SECONDS
from namesrv.core.errors import InvalidField, LimitExceeded, NeedFullRegistration
from namesrv.core.records.rows import DataVersion, LiveKey


@dataclass(slots=True)
class _Staged:
    data_version: DataVersion
    count: int
    deadline: float
    topic_configs: deque[Iterable[route_data_pb2.TopicConfig]] = field(default_factory=deque)
    """Of each part, as they are in its request."""
    parts: int = 0
    byte_size: int = 0


class RegistrationParts:
    """Parts that wait for the ones after them, by channel and broker; bounded in bytes and in time."""

    def __init__(self, monotonic: Callable[[], float], max_bytes: int = MAX_STAGED_BYTES) -> None:
        self._monotonic = monotonic
        self._max_bytes = max_bytes
        self._staged: dict[tuple[str, LiveKey], _Staged] = {}

    def add(
        self, key: LiveKey, data_version: DataVersion, request: pb.RegisterBrokerRequest
    ) -> Iterator[route_data_pb2.TopicConfig] | int:
        """Takes a part. Its channel must be open, and the request must not be changed afterwards.

        Returns:
            All topic configurations once the last part is there; before, the number of parts staged.

        Raises:
            InvalidField: The part's numbers are wrong.
            NeedFullRegistration: It does not follow what is staged; start again from part 0.
            LimitExceeded: Too much is staged.
        """
        self.drop_overdue()
        index, count = _checked_numbers(request)
        place = (request.channel_id, key)
        staged = self._staged.pop(place, None)
        if index == 0:
            staged = _Staged(data_version, count, 0.0)
        if staged is None or (staged.parts, staged.count, staged.data_version) != (index, count, data_version):
            raise NeedFullRegistration(f"part {index} of {count} does not follow what is staged; start from part 0")
        staged.topic_configs.append(request.topic_configs)
        staged.parts += 1
        if staged.parts == count:
            return _consumed(staged.topic_configs)
        staged.byte_size += request.ByteSize()
        total = staged.byte_size + sum(other.byte_size for other in self._staged.values())
        if total > self._max_bytes:
            raise LimitExceeded("bytes of staged registrations", total, self._max_bytes)
        staged.deadline = self._monotonic() + STAGED_PART_SECONDS
        self._staged[place] = staged
        return staged.parts

    def drop_overdue(self) -> None:
        """Drops what has waited too long for its next part."""
        now = self._monotonic()
        for place in [place for place, staged in self._staged.items() if staged.deadline < now]:
            del self._staged[place]

    def drop_channel(self, channel_id: str) -> None:
        """Drops what is staged on a channel that has ended."""
        for place in [place for place in self._staged if place[0] == channel_id]:
            del self._staged[place]


def _consumed(parts: deque[Iterable[route_data_pb2.TopicConfig]]) -> Iterator[route_data_pb2.TopicConfig]:
    """The topic configurations of all parts; each part is freed when it is done with, for that takes a while."""
    while parts:
        yield from parts.popleft()


def _checked_numbers(request: pb.RegisterBrokerRequest) -> tuple[int, int]:
    part = request.part
    if not 1 <= part.count <= MAX_REGISTRATION_PARTS:
        raise InvalidField("part.count", f"is {part.count}, must be 1 to {MAX_REGISTRATION_PARTS}")
    if not part.HasField("index") or not 0 <= part.index < part.count:
        raise InvalidField("part.index", f"is {part.index}, must be set and 0 to {part.count - 1}")
    return part.index, part.count
