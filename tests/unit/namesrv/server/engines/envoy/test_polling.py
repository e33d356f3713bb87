"""Clients of long calls are asked after in turn, each once in a period, and never too many at once."""

from __future__ import annotations

from collections import Counter

from namesrv.server.engines.envoy.polling import TURNS_PER_PERIOD, PeerPoll


class Asked:
    """A call that counts how often it was asked."""

    def __init__(self, number: int, seen: Counter[int]) -> None:
        self._number = number
        self._seen = seen

    def ask_for_the_peer(self) -> None:
        self._seen[self._number] += 1


def test_each_is_asked_after_once_in_a_period() -> None:
    poll, seen = PeerPoll(0.5, 4_000), Counter[int]()
    for number in range(70):
        poll.add(Asked(number, seen))
    for _ in range(TURNS_PER_PERIOD):
        poll.take_turn()
    assert seen == Counter(range(70))


def test_very_many_are_asked_after_more_seldom_and_none_is_forgotten() -> None:
    poll, seen = PeerPoll(1.0, 100), Counter[int]()
    for number in range(1_000):
        poll.add(Asked(number, seen))
    for _ in range(TURNS_PER_PERIOD):
        poll.take_turn()
    assert seen.total() == 100
    for _ in range(9 * TURNS_PER_PERIOD):
        poll.take_turn()
    assert seen == Counter(range(1_000))


def test_one_that_has_ended_is_asked_after_no_more() -> None:
    poll, seen = PeerPoll(0.5, 4_000), Counter[int]()
    calls = [Asked(number, seen) for number in range(2)]
    for call in calls:
        poll.add(call)
    poll.discard(calls[0])
    poll.take_turn()
    assert seen == Counter([1])
    poll.discard(calls[1])
    poll.take_turn()
    assert seen == Counter([1])
    assert len(poll) == 0
