"""A program that has clients and starts processes: python -m tests.integration.route_client.forking_program ...

Its arguments are the name server, the start method, and when the parent has its client: ``never``, ``closed`` (before
the child starts) or ``open``. The child asks by its parent's client, where it has one, and by a client of its own. Both
print what they learn.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext

from route_client import ClientSettings, ForkedProcessError, RouteClient
from route_client.changes import Changes

TOPIC = "TopicTest"
CHILD_SECONDS = 20
"""After this time a signal ends a child that hangs."""

CONTEXTS: dict[str, ForkContext | SpawnContext | ForkServerContext] = {
    "fork": multiprocessing.get_context("fork"),
    "spawn": multiprocessing.get_context("spawn"),
    "forkserver": multiprocessing.get_context("forkserver"),
}


@contextlib.contextmanager
def asking(who: str, namesrv: str) -> Iterator[RouteClient]:
    """A client that has got a route."""
    with RouteClient(namesrv, ClientSettings(timeout_seconds=5)) as client:
        ask(who, client)
        yield client


def ask(who: str, client: RouteClient) -> None:
    known = client.route(TOPIC)
    print(f"{who}: {known.route.broker_datas[0].broker_name if known.route else None}", flush=True)


def in_child(namesrv: str, inherited: tuple[RouteClient, Changes] | None) -> None:
    signal.alarm(CHILD_SECONDS)
    if inherited is not None:
        use(*inherited)
    try:
        with asking("child", namesrv):
            pass
    except ForkedProcessError as error:
        print(f"child: {str(error).partition(' in process')[0]}", flush=True)


def use(client: RouteClient, changes: Changes) -> None:
    """Calls what would answer from the cache, wait for the parent's threads, or use its connections."""
    for work in (
        lambda: client.cached(TOPIC),
        lambda: client.route(TOPIC),
        lambda: client.publish_info(TOPIC),
        lambda: client.find_broker_address_in_publish("broker-a"),
        client.status,
        client.changes,
        lambda: next(iter(changes)),
        lambda: client.forget(TOPIC),
    ):
        try:
            print(f"inherited: {work()}", flush=True)
        except ForkedProcessError:
            print("inherited: refused", flush=True)
    changes.close()
    client.close()


def end_as_an_interpreter_does() -> int:
    """Forks a child that collects garbage and ends as a program does; returns its exit code."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(CHILD_SECONDS)
        gc.collect()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start_children(namesrv: str, method: str, inherited: tuple[RouteClient, Changes] | None) -> None:
    child = CONTEXTS[method].Process(target=in_child, args=(namesrv, inherited if method == "fork" else None))
    child.start()
    child.join()
    ends = [child.exitcode, end_as_an_interpreter_does()] if method == "fork" else [child.exitcode]
    print("ended:", *ends, flush=True)


def main(namesrv: str, method: str, parent_has: str) -> None:
    if parent_has == "closed":
        with asking("parent", namesrv):
            pass
    if parent_has != "open":
        start_children(namesrv, method, None)
        return
    with asking("parent", namesrv) as client:
        start_children(namesrv, method, (client, client.changes()))
        client.forget(TOPIC)
        ask("parent", client)


if __name__ == "__main__":
    main(*sys.argv[1:])
