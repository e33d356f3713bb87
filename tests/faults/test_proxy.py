"""The bad network itself does what the faults are named after."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from groundwork.endpoints import Endpoint
from tests.faults.network.proxy import Disturbance, Link, Proxy

WAIT = 10.0
A_MOMENT = 0.3
"""How long it is looked whether something comes that must not."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(seed=1) as proxy:
        yield proxy


@pytest.fixture
def sides(proxy: Proxy) -> Iterator[tuple[Link, socket.socket, socket.socket]]:
    """A link, and both ends of a connection through it that works."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = proxy.link(Endpoint("127.0.0.1", listener.getsockname()[1]))
        client = socket.create_connection((link.listen.host, link.listen.port), timeout=WAIT)
        server, _ = listener.accept()
        server.settimeout(WAIT)
        with client, server:
            _goes_through(client, server)
            yield link, client, server


def _goes_through(sender: socket.socket, receiver: socket.socket) -> None:
    sender.sendall(b"x")
    receiver.settimeout(WAIT)
    assert receiver.recv(1) == b"x"


def _hears_nothing(receiver: socket.socket) -> bool:
    receiver.settimeout(A_MOMENT)
    try:
        receiver.recv(1)
    except TimeoutError:
        return True
    return False


Sides = tuple[Link, socket.socket, socket.socket]


def test_a_cut_holds_bytes_one_way_and_lets_them_through_when_it_heals(proxy: Proxy, sides: Sides) -> None:
    link, client, server = sides
    proxy.cut(link, down=False)
    client.sendall(b"late")
    assert _hears_nothing(server)
    _goes_through(server, client)
    proxy.heal(link)
    server.settimeout(WAIT)
    assert server.recv(4) == b"late"


def test_the_end_of_a_connection_is_held_by_a_cut_as_well(proxy: Proxy, sides: Sides) -> None:
    link, client, server = sides
    proxy.cut(link)
    client.close()
    assert _hears_nothing(server)
    proxy.heal(link)
    server.settimeout(WAIT)
    with contextlib.suppress(ConnectionError):
        assert server.recv(1) == b""


def test_a_connection_that_is_opened_while_cut_works_after_it_heals(proxy: Proxy, sides: Sides) -> None:
    link, _, _ = sides
    proxy.cut(link)
    with socket.create_connection((link.listen.host, link.listen.port), timeout=WAIT) as late:
        late.sendall(b"x")
        assert _hears_nothing(late)
        proxy.heal(link)


def test_a_reset_reaches_both_sides(proxy: Proxy, sides: Sides) -> None:
    link, client, server = sides
    proxy.reset(link)
    for side in (client, server):
        side.settimeout(WAIT)
        with pytest.raises(ConnectionResetError):
            side.recv(1)


@pytest.mark.parametrize("server_knows", [True, False])
def test_a_half_open_connection_is_lost_for_one_side_only(proxy: Proxy, sides: Sides, *, server_knows: bool) -> None:
    link, client, server = sides
    proxy.half_open(link, server_knows=server_knows)
    knows, does_not = (server, client) if server_knows else (client, server)
    knows.settimeout(WAIT)
    with pytest.raises(ConnectionResetError):
        knows.recv(1)
    does_not.sendall(b"into the void")
    assert _hears_nothing(does_not)


def test_lossy_and_slow_links_keep_bytes_whole_and_in_order(proxy: Proxy, sides: Sides) -> None:
    link, client, server = sides
    proxy.disturb(link, Disturbance(delay_seconds=0.01, jitter_seconds=0.01, loss=0.2))
    sent = b"".join(number.to_bytes(4, "big") for number in range(2_000))

    def send() -> None:
        for begin in range(0, len(sent), 800):
            client.sendall(sent[begin : begin + 800])

    sender = threading.Thread(target=send)
    sender.start()
    server.settimeout(WAIT)
    received = b""
    while len(received) < len(sent):
        received += server.recv(65_536)
    sender.join(WAIT)
    assert received == sent


def test_a_narrow_link_takes_its_time_for_each_byte(proxy: Proxy, sides: Sides) -> None:
    link, client, server = sides
    proxy.disturb(link, Disturbance(bits_per_second=400))
    client.sendall(bytes(100))  # two seconds
    assert _hears_nothing(server)
    server.settimeout(WAIT)
    assert server.recv(1_000) == bytes(100)
