"""The bound on answers that all peers together have not read, and the connections that end for it."""

from __future__ import annotations

from namesrv.remoting.memory import UnsentAnswers

MAX_BYTES = 800


class Peers:
    """Connections ``ADDRESS:PORT``, and the bytes that wait for each."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        self.answers: UnsentAnswers[str] = UnsentAnswers(
            MAX_BYTES, self.waiting.__getitem__, lambda name: name.partition(":")[0]
        )

    def owe(self, peer: str, size: int) -> list[tuple[str, int]]:
        """Writes an answer to a peer. Returns the connections that end."""
        self.waiting[peer] = self.waiting.get(peer, 0) + size
        return self.answers.note(peer)


def test_the_address_that_is_owed_most_loses_its_largest_connection_first() -> None:
    peers = Peers()
    assert peers.owe("honest:1", 200) == []
    for port in range(4):
        assert peers.owe(f"greedy:{port}", 140 + port) == []
    assert peers.owe("greedy:0", 100) == [("greedy:0", 240)]
    assert peers.owe("honest:1", 60) == []


def test_an_eighth_of_the_bound_is_free_after_connections_have_ended() -> None:
    peers = Peers()
    for port in range(80):
        assert peers.owe(f"a:{port}", 10) == []
    assert len(peers.owe("b:1", 1)) == 11
    assert [peers.owe(f"c:{port}", 10) for port in range(10)] == [[]] * 10


def test_bytes_that_were_read_since_do_not_count() -> None:
    peers = Peers()
    peers.owe("reads:1", 700)
    peers.waiting["reads:1"] = 0
    assert peers.owe("other:1", 700) == []


def test_a_connection_that_has_ended_does_not_count() -> None:
    peers = Peers()
    peers.owe("ended:1", 700)
    peers.answers.forget("ended:1")
    assert peers.owe("other:1", 700) == []
    assert peers.owe("other:1", 101) == [("other:1", 801)]
