"""TLS of the listener: its files are read where they cannot block it, and handshakes are shared by address."""

from __future__ import annotations

import asyncio
from pathlib import Path

from groundwork.listener_tls import ListenerFiles
from groundwork.watched_file import request_reload
from namesrv.remoting import tls
from namesrv.remoting.limits import MAX_HANDSHAKES
from namesrv.remoting.tls import Handshakes, RemotingTls
from tests.support.secured.certificates import Authority


def test_files_are_read_at_a_look_and_not_for_a_connection(tmp_path: Path) -> None:
    server = Authority(tmp_path).sign_server()
    shown = RemotingTls(ListenerFiles(server.certificate, server.key))
    first = shown.context
    request_reload()
    assert shown.context is first
    shown.look()
    assert shown.context is not first


async def test_an_address_has_so_many_handshakes_at_once_and_others_do_not_wait() -> None:

    handshakes, begun = Handshakes(), list[str]()

    async def shake(address: str) -> None:
        async with handshakes.one_of(address):
            begun.append(address)
            await asyncio.sleep(0)

    shaking = [asyncio.create_task(shake(address)) for address in (MAX_HANDSHAKES + 1) * ["many"] + ["few"]]
    await asyncio.wait(shaking[-1:])
    before = begun.copy()
    await asyncio.wait(shaking, timeout=10 * tls.BETWEEN_HANDSHAKES_SECONDS)
    assert begun == [*before, "many"]
    assert before == [*MAX_HANDSHAKES * ["many"], "few"]
