"""Lookups of topics that the cache does not know: gathered into batches, failing over from name server to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc

from namesrv_common.endpoints import Endpoint
from namesrv_common.grpc_errors import ELSEWHERE, CallError, RichError
from route_client.cache import Answer
from route_client.endpoints import EndpointChooser
from route_client.errors import ClientClosedError, NoNamesrvAnsweredError, RequestRefusedError, RouteClientError
from route_client.kept_routes import KeptRoutes
from route_client.namesrv import BATCH_TOPICS, Namesrvs
from route_client.watch_stream import ResumePoint

PATIENCE_SECONDS = 1.0
"""Silence of a name server after which the next one is asked as well."""

ASK_ELSEWHERE = ELSEWHERE | {grpc.StatusCode.RESOURCE_EXHAUSTED}
"""Codes that say something about the name server and not about the topic. UNIMPLEMENTED: another service."""


class Lookups:
    """Asks for topics, each at most once at a time."""

    def __init__(self, namesrvs: Namesrvs, chooser: EndpointChooser, routes: KeptRoutes) -> None:
        """Asks nobody yet. The routes get all answers."""
        self._namesrvs = namesrvs
        self._chooser = chooser
        self._routes = routes
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._gathered: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def lookup(self, topics: Iterable[str]) -> None:
        """Returns once answers for all topics have been taken.

        Raises:
            NoNamesrvAnsweredError: No name server answered for one of them.
            RequestRefusedError: A name server refused to be asked.
        """
        waiting = [self._ask_for(topic) for topic in topics]
        for outcome in await asyncio.gather(*map(asyncio.shield, waiting), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def wait(self) -> None:
        """Waits for the lookups that are under way, but not for silent name servers."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=PATIENCE_SECONDS)

    async def close(self) -> None:
        """Gives up what is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask_for(self, topic: str) -> asyncio.Future[None]:
        if topic not in self._under_way:
            self._under_way[topic] = asyncio.get_running_loop().create_future()
            self._gathered.append(topic)
            if len(self._gathered) == 1:
                task = asyncio.create_task(self._ask_for_gathered(), name="route-client-lookup")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return self._under_way[topic]

    async def _ask_for_gathered(self) -> None:
        # All lookups of one iteration of the event loop are in the same batch.
        topics, self._gathered = self._gathered, []
        try:
            for start in range(0, len(topics), BATCH_TOPICS):
                await self._ask_in_turn(topics[start : start + BATCH_TOPICS])
        except asyncio.CancelledError:
            self._settle(topics, ClientClosedError("the client was closed meanwhile"))
            raise
        except Exception as defect:
            self._settle(topics, RouteClientError(f"a defect of the client: {defect!r}"))
            raise

    async def _ask_in_turn(self, topics: list[str]) -> None:
        """Asks the next name server where one fails, has no answer for a topic, or is silent for too long."""
        errors: dict[Endpoint, RichError] = {}
        to_ask = self._chooser.in_order()
        asked: dict[asyncio.Task[list[Answer | ValueError]], Endpoint] = {}
        try:
            while to_ask or asked:
                if to_ask:
                    endpoint = to_ask.pop(0)
                    asked[asyncio.create_task(self._namesrvs.at(endpoint).lookup(topics))] = endpoint
                patience = PATIENCE_SECONDS if to_ask else None
                answered, silent = await asyncio.wait(asked, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                for call in () if answered else silent:
                    self._chooser.doubt(asked[call])
                for call in answered:
                    endpoint = asked.pop(call)
                    try:
                        errors[endpoint] = self._take(endpoint, await call)
                    except CallError as failed:
                        if failed.error.code not in ASK_ELSEWHERE:
                            self._settle(topics, RequestRefusedError(endpoint, failed.error))
                            return
                        errors[endpoint] = failed.error
                        self._chooser.doubt(endpoint)
                topics = [topic for topic in topics if topic in self._under_way]
                if not topics:
                    return
        finally:
            for call in asked:
                call.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        for topic in topics:
            self._settle([topic], NoNamesrvAnsweredError(f"topic {topic!r}", errors))

    def _take(self, endpoint: Endpoint, answers: list[Answer | ValueError]) -> RichError:
        """Hands the answers on. Returns why the other topics of the batch have none."""
        problems: list[ValueError] = []
        taken: list[Answer] = []
        for answer in answers:
            if (problem := self._routes.take(answer)) is not None:
                problems.append(problem)
            elif isinstance(answer, Answer):
                taken.append(answer)
        if taken:  # the first one has the lowest revision
            point = ResumePoint(taken[0].origin.epoch, taken[0].revision)
            self._routes.topics.looked_up(endpoint, point, [answer.topic for answer in taken])
        self._settle(answer.topic for answer in taken)
        if problems:
            return RichError(grpc.StatusCode.INTERNAL, f"answered with what the client does not take: {problems[0]}")
        return RichError(grpc.StatusCode.UNAVAILABLE, "does not know the topic yet", reason="REGISTRY_WARMING")

    def _settle(self, topics: Iterable[str], error: RouteClientError | None = None) -> None:
        for topic in topics:
            future = self._under_way.pop(topic, None)
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # the callers may have been cancelled; asyncio would log that nobody retrieved it
