"""A name server in several processes, and connections to the one that is meant."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from support.processes import Client, NamesrvProcess, eventually
from tests.integration.fleet.replicas import status


def processes(server: NamesrvProcess) -> dict[int, int]:
    """The process ids of the workers that were started last, by number."""
    return {int(line["worker"]): int(line["process"]) for line in server.events("worker_started")}


def lives(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def workers(*arguments: str, count: int = 2, engine: str = "grpcio") -> Iterator[NamesrvProcess]:
    """A name server in several processes, once all of them listen."""
    with NamesrvProcess("--workers", str(count), *arguments, engine=engine) as server:
        eventually(lambda: len(server.events("namesrv_started")), lambda seen: seen >= count)
        yield server
        children = processes(server).values()
        assert server.terminate(30) == 0
        assert not any(map(lives, children))


@contextlib.contextmanager
def at(server: NamesrvProcess, *, owner: bool) -> Iterator[Client]:
    """A connection to the owner of the tables, or to another process: the kernel chooses, so others are given up."""
    for _ in range(200):
        with server.connect() as client:
            if status(client).HasField("replica") != owner:
                yield client
                return
    raise AssertionError("the kernel never chose the wanted one")
