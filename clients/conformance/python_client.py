"""The program of route_client for the cases: README.md says what it reads and prints."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from route_client import (
    AioRouteClient,
    ClientSettings,
    KnownRoute,
    NoNamesrvAnsweredError,
    RequestRefusedError,
    TopicNotFoundError,
)

ERRORS = {
    TopicNotFoundError: "NOT_FOUND",
    NoNamesrvAnsweredError: "NO_ANSWER",
    RequestRefusedError: "REFUSED",
}
_printing = threading.Lock()


def say(**message: Any) -> None:
    with _printing:
        print(json.dumps(message), flush=True)


def state(known: KnownRoute) -> dict[str, Any]:
    if known.route is None:
        return {"brokers": None, "stale": None}
    brokers = sorted(
        f"{group.cluster_name}/{group.broker_name}:{id_}{'?' if id_ in group.unconfirmed_broker_ids else ''}"
        for group in known.route.broker_datas
        for id_, _ in group.broker_addrs
    )
    return {"brokers": brokers, "stale": known.stale.value if known.stale else None}


async def answer(client: AioRouteClient, verb: str, topic: str) -> dict[str, Any]:
    if verb == "route":
        return state(await client.route(topic))
    if verb == "queues":
        queues = (await client.publish_info(topic)).queues
        return {"queues": [f"{queue.broker_name}:{queue.queue_id}" for queue in queues]}
    if verb == "cached":
        known = client.cached(topic)
        return {"brokers": None, "stale": None} if known is None else state(known)
    client.forget(topic)
    return {}


async def main() -> None:
    given = json.loads(sys.stdin.readline())
    settings = ClientSettings(
        hold_seconds=given["hold_millis"] / 1000, timeout_seconds=given["timeout_millis"] / 1000, default_topic=""
    )
    async with AioRouteClient(given["servers"], settings) as client:
        client.on_change(lambda change: say(change=change.topic, **state(change.after)))
        topics = [asyncio.create_task(client.route(topic)) for topic in given["topics"]]
        while line := await asyncio.to_thread(sys.stdin.readline):
            ((verb, topic),) = json.loads(line).items()
            try:
                say(**await answer(client, verb, topic))
            except (TopicNotFoundError, NoNamesrvAnsweredError, RequestRefusedError) as error:
                say(error=ERRORS[type(error)])
        await asyncio.gather(*topics, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
