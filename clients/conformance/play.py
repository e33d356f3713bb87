"""Plays the cases of cases.yaml: scripted name servers on loopback, and the program of a client under test.

``python -m clients.conformance.play [--case ID] [--without FEATURE] COMMAND...`` prints a line for each case. README.md
says what the program of a client must do.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf.message import Message
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1 import route_service_pb2 as pb

from namesrv_common.grpc_errors import RichError
from tests.support.fakes.scripted_namesrv import ScriptedNamesrv, refuse
from tests.support.patience import FACTOR, TIMEOUT
from tests.support.programs.processes import Process

Case = Mapping[str, Any]
CASES: list[Case] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
END_SECONDS = 10.0
"""Time for the program of a client to end by itself."""
_BROKER = re.compile(r"(?:(?P<cluster>\w+)/)?(?P<name>\w+)(?::(?P<id>\d+|\*))?(?P<unconfirmed>\??)")


class Failed(AssertionError):
    """The client did something else than the case expects."""


def play(case: Case, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Plays one case. Raises Failed, with everything that was seen, if the client does not pass it."""
    _Play(case).run(command, environment)


class _Play:
    """One case under way."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.over = threading.Event()
        self.events: defaultdict[str, queue.SimpleQueue[tuple[str, Message]]] = defaultdict(queue.SimpleQueue)
        """What each server was asked: ``opens`` or ``asks`` with the message, ``looks up`` with the request."""
        self._servers = [_Server(self, number) for number in range(len(case.get("servers", "A")))]
        self._roles: dict[_Server, str] = {}
        self._lock = threading.Lock()
        self._seen: list[str] = []
        self._step_before = time.monotonic()
        """When the last step began."""

    def run(self, command: Sequence[str], environment: dict[str, str] | None) -> None:
        with ExitStack() as stack:
            for server in self._servers:
                stack.enter_context(server)
            stack.callback(self.over.set)
            client = stack.enter_context(_Client(command, environment, self.note))
            client.tell(
                servers=[str(server.endpoint) for server in self._servers],
                topics=self.case.get("topics", ["T"]),
                hold_millis=self.case.get("hold_millis", 60_000),
                timeout_millis=self.case.get("timeout_millis", 5_000),
            )
            try:
                for step in (*_beginning(self.case), *self.case["steps"]):
                    began = time.monotonic()
                    self._take(step, client, str(step))
                    self._step_before = began
                if "history" in self.case:
                    check("the history", client.history(), [expected(*state) for state in self.case["history"]])
            except (AssertionError, queue.Empty) as problem:
                seen = "\n  ".join(self._seen)
                text = str(problem) or f"{step}: nothing came in time"
                raise Failed(f"{self.case['id']}: {text}\n  {seen}\n{client.raw}") from problem

    def note(self, text: str) -> None:
        """Notes an event for the report of a failure."""
        self._seen.append(text)

    def role(self, server: _Server, call: str) -> str:
        """The name of a server. The first one that gets a watch (or a lookup, if the case says so) is A."""
        with self._lock:
            if not self._roles and call == self.case.get("first", "watch"):
                order = [server, *(other for other in self._servers if other is not server)]
                self._roles = dict(zip(order, "ABCD", strict=False))
            return self._roles.get(server, "-")

    def _take(self, step: Mapping[str, Any], client: _Client, what: str) -> None:
        actor, verb = next(iter(step.items()))
        if actor == "wait":
            time.sleep(verb / 1000)
        elif actor == "client":
            self._take_of_client(verb, step, client, what)
        elif verb in {"opens", "asks", "looks up"}:
            self._expect(actor, verb, step, what)
        elif verb == "quiet":
            with suppress(queue.Empty):
                raise Failed(f"{what}: {self.events[actor].get(timeout=step['millis'] / 1000)}")
        else:
            server = next(server for server, role in self._roles.items() if role == actor)
            {"sends": server.send, "ends": server.end, "stops": server.stop_now}[verb](step)

    def _expect(self, actor: str, verb: str, step: Mapping[str, Any], what: str) -> None:
        waits_since = time.monotonic()
        seen, message = self.events[actor].get(timeout=TIMEOUT)
        now = time.monotonic()
        check(what, seen, verb)
        wanted: dict[str, Any] = {"topics": step.get("topics", ["T"] if verb == "opens" else [])}
        got: dict[str, Any] = {"topics": sorted(message.topics)}  # type: ignore[attr-defined]
        if isinstance(message, pb.WatchTopicRoutesRequest):
            wanted |= {"removed": step.get("removed", []), "resume": step.get("resume")}
            after = message.resume_after
            resume = [after.epoch, after.revision] if message.HasField("resume_after") else None
            got |= {"removed": sorted(message.removed_topics), "resume": resume}
        check(what, got, wanted)
        # On a busy machine, the client can be ahead of this thread: the step before may have had its effect long ago.
        if (now - self._step_before) * 1000 < step.get("after_millis", 0):
            raise Failed(f"{what}: after {(now - self._step_before) * 1000:.0f} ms")
        if (now - waits_since) * 1000 > step.get("within_millis", TIMEOUT * 1000) * FACTOR:
            raise Failed(f"{what}: after {(now - waits_since) * 1000:.0f} ms")

    def _take_of_client(self, verb: str, step: Mapping[str, Any], client: _Client, what: str) -> None:
        topic = step.get("topic", "T")
        if verb == "shows":
            client.shows(topic, expected(step["brokers"], step.get("stale")), what)
            return
        client.tell(**{verb: topic})
        answer = client.answer()
        if "error" in step:
            check(what, answer.get("error"), step["error"])
        elif "queues" in step:
            check(what, answer.get("queues"), step["queues"])
        elif "brokers" in step:
            check(what, (answer.get("brokers"), answer.get("stale")), expected(step["brokers"], step.get("stale")))


class _Server(ScriptedNamesrv):
    """A name server that does what the steps say. Its lookups answer by the case's ``lookups``."""

    services = (pb.DESCRIPTOR.services_by_name["RouteService"],)

    def __init__(self, play: _Play, number: int) -> None:
        super().__init__(f"ns-{number}", epoch=f"e{number}")
        self._play = play
        self._watch: queue.SimpleQueue[Message | Mapping[str, Any] | None] = queue.SimpleQueue()

    def start(self) -> None:
        super().start()
        self.serve(ready=self._play.case.get("serving", True))

    def send(self, step: Mapping[str, Any]) -> None:
        header = route_data_pb2.NamesrvHeader(
            namesrv_name=self.name, epoch=step.get("epoch", "e"), revision=step.get("bookmark", step.get("revision"))
        )
        bookmark = "bookmark" in step
        message = pb.WatchTopicRoutesResponse(
            header=header, bookmark=bookmark, request_count=step.get("counts", 1) if bookmark else 0
        )
        for topic, brokers in step.get("routes", {}).items():
            removals = map(_removal, step.get("removals", ()))
            message.changes.add(topic=topic, route=_route(brokers), removals=removals)
        self._watch.put(message)

    def end(self, step: Mapping[str, Any]) -> None:
        self._watch.put(step)

    def stop_now(self, _step: Mapping[str, Any]) -> None:
        self._watch.put(None)
        self.stop()

    # What a client calls

    def WatchTopicRoutes(  # noqa: N802
        self, requests: Iterator[pb.WatchTopicRoutesRequest], context: grpc.ServicerContext
    ) -> Iterator[Message]:
        opening, actions = next(requests), queue.SimpleQueue[Message | Mapping[str, Any] | None]()
        self._watch = actions
        self._tell("watch", "opens", opening)
        context.add_callback(lambda: actions.put(None))
        threading.Thread(target=self._read, args=(requests,), daemon=True).start()
        while (action := actions.get()) is not None:
            if isinstance(action, Message):
                yield action
            elif "code" in action:
                _end(context, action)
            else:
                return

    def _read(self, requests: Iterator[Message]) -> None:
        with suppress(Exception):  # whatever gRPC says of the end of a call
            for request in requests:
                self._tell("watch", "asks", request)

    def GetTopicRoute(  # noqa: N802
        self, request: pb.GetTopicRouteRequest, context: grpc.ServicerContext
    ) -> pb.GetTopicRouteResponse:
        answer = self.BatchGetTopicRoutes(pb.BatchGetTopicRoutesRequest(topics=[request.topic]), context)
        if not answer.routes:
            warming = {"code": "UNAVAILABLE", "reason": "REGISTRY_WARMING", "retry_millis": 200}
            _end(context, {"code": "NOT_FOUND", "reason": "TOPIC_NOT_FOUND"} if answer.topics_not_found else warming)
        return pb.GetTopicRouteResponse(header=answer.header, route=answer.routes[0].route)

    def BatchGetTopicRoutes(  # noqa: N802
        self, request: pb.BatchGetTopicRoutesRequest, context: grpc.ServicerContext
    ) -> pb.BatchGetTopicRoutesResponse:
        lookups = self._play.case.get("lookups", {})
        told = lookups.get(self._tell("lookup", "looks up", request), lookups.get("any", {}))
        answer = pb.BatchGetTopicRoutesResponse(header=self.header(0))
        answer.header.epoch = "e"
        for topic in request.topics:
            brokers = told.get(topic, "warming")
            if brokers == "silent":
                self._play.over.wait(TIMEOUT)
            elif brokers == "warming":
                answer.topics_warming.append(topic)
            elif brokers is None:
                answer.topics_not_found.append(topic)
            elif isinstance(brokers, list):
                answer.routes.add(topic=topic, route=_route(brokers))
            elif "code" in brokers:
                _end(context, brokers)
            elif len(request.topics) > 1:
                answer.topics_left_out.append(topic)
            else:
                answer.routes.add(topic=topic, route=_route(brokers["left_out"]))
        return answer

    def _tell(self, call: str, verb: str, request: Message) -> str:
        role = self._play.role(self, call)
        self._play.note(f"{role} {verb}: {' '.join(str(request).split())}")
        if call == self._play.case.get("first", "watch"):
            self._play.events[role].put((verb, request))
        return role


class _Client(Process):
    """The program of the client under test. The end of its input ends it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None, note: Callable[[str], None]) -> None:
        super().__init__([*command], environment, pipes=True)
        self._note = note
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._states: defaultdict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.pipes[0].close()
        with suppress(subprocess.TimeoutExpired):
            self.wait(END_SECONDS)
        self.kill()
        self._listening.join(TIMEOUT)
        super().__exit__()

    def _listen(self) -> None:
        for line in self.pipes[1]:
            self._note(f"client: {line.strip()}")
            message = json.loads(line)
            if "change" not in message:
                self._answers.put(message)
                continue
            with self._changed:
                self._states[message["change"]].append((message["brokers"], message["stale"]))
                self._changed.notify()

    def tell(self, **command: Any) -> None:
        self._note(f"to the client: {command}")
        self.pipes[0].write(json.dumps(command) + "\n")
        self.pipes[0].flush()

    def answer(self) -> dict[str, Any]:
        """The answer to the last command."""
        return self._answers.get(timeout=TIMEOUT)

    def shows(self, topic: str, state: tuple[Any, Any], what: str) -> None:
        """Waits until the last change of a topic is to a state."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._states[topic][-1:] == [state], TIMEOUT):
                check(what, self._states[topic], [state])

    def history(self, topic: str = "T") -> list[tuple[Any, Any]]:
        """All states of a topic but ``disconnected``, without repetitions."""
        states = [state for state in self._states[topic] if state[1] != "disconnected"]
        return [state for number, state in enumerate(states) if states[number - 1 : number] != [state]]


def _beginning(case: Case) -> Sequence[Case]:
    """Returns the steps that ``begins`` stands for: a watch, its first message, and the route that it brings."""
    if (brokers := case.get("begins")) is None:
        return ()
    sent = {"A": "sends", "routes": {"T": brokers}, "bookmark": 5}
    return {"A": "opens"}, sent, {"client": "shows", "brokers": brokers}


def check(what: str, got: object, wanted: object) -> None:
    """Raises Failed if a value is not as wanted."""
    if got != wanted:
        raise Failed(f"{what}: got {got}, wanted {wanted}")


def expected(brokers: list[str] | None, stale: str | None = None) -> tuple[list[str] | None, str | None]:
    """A state as the program of a client prints it."""
    if brokers is None:
        return None, stale
    found = [(cluster, name, id_ or 0, mark) for cluster, name, id_, mark in map(_broker, brokers)]
    return sorted(f"{cluster}/{name}:{id_}{mark}" for cluster, name, id_, mark in found), stale


def _broker(text: str) -> tuple[str, str, int | None, str]:
    found = _BROKER.fullmatch(text)
    assert found is not None, text
    id_ = None if found["id"] == "*" else int(found["id"] or 0)
    return found["cluster"] or "c1", found["name"], id_, found["unconfirmed"]


def _route(brokers: Sequence[str] | None) -> route_data_pb2.TopicRouteData | None:
    if brokers is None:
        return None
    groups: dict[tuple[str, str], route_data_pb2.BrokerData] = {}
    for cluster, name, id_, unconfirmed in map(_broker, brokers):
        data = groups.setdefault((cluster, name), route_data_pb2.BrokerData(cluster_name=cluster, broker_name=name))
        data.broker_addrs.add(broker_id=id_, broker_addr=f"{name.lower()}:{10911 + (id_ or 0)}")
        data.unconfirmed_broker_ids.extend([id_ or 0] if unconfirmed else [])
    return route_data_pb2.TopicRouteData(
        broker_datas=groups.values(),
        queue_datas=[
            route_data_pb2.QueueData(
                broker_name=name, cluster_name=cluster, read_queue_nums=2, write_queue_nums=2, perm=6
            )
            for cluster, name in groups
        ],
    )


def _removal(text: str) -> pb.BrokerRemoval:
    """Reads ``X UNREGISTERED``; ``X:*`` is the whole group, ``*`` the whole topic."""
    who, reason = text.split()
    number: Any = int(reason) if reason.isdigit() else f"REMOVAL_REASON_{reason}"
    if who == "*":
        return pb.BrokerRemoval(reason=number)
    cluster, name, id_, _ = _broker(who)
    return pb.BrokerRemoval(cluster_name=cluster, broker_name=name, broker_id=id_, reason=number)


def _end(context: grpc.ServicerContext, error: Mapping[str, Any]) -> None:
    code = grpc.StatusCode[error["code"]]
    if "reason" not in error:
        context.abort(code, "without details")
    wait = error.get("retry_millis")
    refuse(
        context,
        RichError(
            code,
            "as the case says",
            error["reason"],
            error.get("domain", "namesrv.dev"),
            retry_after_seconds=None if wait is None else wait / 1000,
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Plays the cases of cases.yaml with the program of a client.")
    parser.add_argument("--case", help="only this case, by its id")
    parser.add_argument("--without", action="append", default=[], help="a feature that the client does not have")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    failed = 0
    for case in CASES:
        if arguments.case in {None, case["id"]} and case.get("needs") not in arguments.without:
            try:
                play(case, arguments.command)
            except Failed as failure:
                failed += 1
                print(failure)
            else:
                print(f"{case['id']}: passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
