"""Several fleets behind one console."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.programs.console_process import ConsoleProcess
from tests.support.programs.processes import NamesrvProcess, eventually
from tests.support.registrations import identity, registration

SENT_BY_PAGE = {"Content-Type": "application/json", "X-Namesrv-Console": "1"}


def test_each_fleet_is_shown_by_itself_and_to_those_who_may_see_it(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.write_text(
        '[users.ada]\nrole = "admin"\n'
        '[users.wera]\nrole = "operator"\nfleets = ["west", "gone"]\n'
        '[users.nils]\nrole = "admin"\nfleets = []\n'
    )
    with (
        NamesrvProcess("--data-dir", str(tmp_path / "east")) as east,
        NamesrvProcess("--data-dir", str(tmp_path / "west")) as west,
        east.connect() as east_client,
        west.connect() as west_client,
        ConsoleProcess(
            None,
            *("--fleet", f"east={east.endpoint}", "--fleet", f"west={west.endpoint}"),
            *("--users-file", str(users), "--proxy-header", "X-User", "--proxy-address", "127.0.0.1"),
            "--permit-actions",
        ) as console,
    ):
        for client, broker in ((east_client, "broker-e"), (west_client, "broker-w")):
            client.registration.RegisterBroker(registration(broker=identity(f"{broker}:1", 0, broker)), timeout=20)

        def ask(person: str, path: str) -> tuple[int, dict[str, Any]]:
            status, _, body = console.request(f"/api/{path}", headers={"X-User": person})
            return status, json.loads(body)

        def brokers(person: str, query: str = "") -> list[str]:
            return [row["broker"] for row in ask(person, f"brokers{query}")[1]["brokers"]]

        for person, query, expected in (
            ("ada", "", ["broker-e"]),
            ("ada", "?fleet=west", ["broker-w"]),
            ("wera", "", ["broker-w"]),
        ):
            assert eventually(lambda person=person, query=query: brokers(person, query), bool) == expected  # type: ignore[misc]
        told = [ask(person, "overview")[1] for person in ("ada", "wera")]
        assert [(one["fleet"], one["fleets"]) for one in told] == [("east", ["east", "west"]), ("west", ["west"])]

        for path in ("overview", "clusters", "brokers", "topics", "journal", "events", "route?topic=TopicTest"):
            for person, query in (("wera", "fleet=east"), ("wera", "fleet=gone"), ("nils", "")):
                status, answer = ask(person, f"{path}{'&' if '?' in path else '?'}{query}")
                assert (status, answer["problem"]["reason"]) == (404, "FLEET_NOT_FOUND"), (path, person)

        action = {"action": "drain", "broker": "broker-e", "cluster": "DefaultCluster", "preview": False}
        for query, status in (("?fleet=east", 404), ("", 200)):
            done = console.request(f"/api/actions{query}", "POST", {**SENT_BY_PAGE, "X-User": "wera"}, action)
            assert done[0] == status
        (result,) = json.loads(done[2])["results"]
        assert result["problem"]["reason"] == "BROKER_NOT_REGISTERED", "the fleet that she may see has no such broker"
