"""The console with TLS of its own and a log-in: over HTTP, and in a browser."""

from __future__ import annotations

import json
import shutil
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from namesrv_api.v1.admin_service_pb2 import ListIntentsRequest

from nsctl.console.log_in import hashed
from tests.support.programs.console_process import ConsoleProcess, chromium
from tests.support.programs.processes import BIN, NamesrvProcess, ended, eventually
from tests.support.registrations import registration
from tests.support.secured.fleet import LIVE_SECONDS, Place

TOKEN = "a-token-that-is-long"
KEPT = "scrypt$LKncnOzlocncu8RJ8vGOxQ==$v5RYYVoxV/wndeCTZrKGnS7oaobRWjBMpp2O2C0/MlU="
"""A password, hashed."""
SENT_BY_PAGE = {"Content-Type": "application/json", "X-Namesrv-Console": "1"}


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "console.token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def console(place: Place, token: Path) -> Iterator[ConsoleProcess]:
    """In front of a name server that asks for certificates, which the console has one of, too."""
    pair = place.callers["admin"]
    with (
        NamesrvProcess(*place.flags("mTLS")) as namesrv,
        ConsoleProcess(
            str(namesrv.endpoint),
            *("--listen-tls-cert", str(place.server.certificate), "--listen-tls-key", str(place.server.key)),
            *("--tls-ca", str(place.authority.path), "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)),
            *("--log-in-token-file", str(token), "--permit-actions"),
            authority=place.authority.path,
        ) as process,
    ):
        yield process


def test_nothing_is_told_or_done_without_the_token_but_the_empty_page(console: ConsoleProcess) -> None:
    assert console.page.startswith("https://")
    assert console.request("/")[0] == console.request("/main.js")[0] == 200
    for path in ("overview", "topics", "route?topic=x", "journal", "events"):
        status, headers, body = console.request(f"/api/{path}")
        assert (status, b"NOT_LOGGED_IN" in body, "set-cookie" in headers) == (401, True, False)
    assert console.request("/api/actions", "POST", SENT_BY_PAGE, {})[0] == 401
    status, _, body = console.request("/api/overview", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (status, b'"servers"' in body) == (200, True)


def test_a_log_in_gives_a_cookie_and_only_to_our_page(console: ConsoleProcess) -> None:
    assert console.request("/api/log-in", "POST", {"Content-Type": "application/json"}, {"token": TOKEN})[0] == 403
    assert console.request("/api/log-in", "POST", SENT_BY_PAGE, {"token": "wrong"})[0] == 401
    status, headers, _ = console.request("/api/log-in", "POST", SENT_BY_PAGE, {"token": TOKEN})
    assert status == 200
    assert "Secure" in headers["set-cookie"]
    shown = {"Cookie": headers["set-cookie"].split(";")[0]}
    assert console.request("/api/overview", headers=shown)[0] == 200
    assert console.request("/api/log-in", "DELETE", shown, {})[0] == 403, "no other page may log somebody out"
    status, headers, _ = console.request("/api/log-in", "DELETE", {**SENT_BY_PAGE, **shown}, {})
    assert (status, "Max-Age=0" in headers["set-cookie"]) == (200, True)
    assert console.request("/api/overview", headers=shown)[0] == 401, "whoever has the cookie has nothing"
    [line] = eventually(lambda: console.events("log_in_refused"))
    assert TOKEN not in console.raw
    assert line["viewer"] == "127.0.0.1"


def test_guesses_of_the_token_in_a_header_are_slowed_as_in_the_form(token: Path) -> None:
    with ConsoleProcess("127.0.0.1:1", "--log-in-token-file", str(token)) as console:

        def status(shown: str) -> int:
            return console.request("/api/overview", headers={"Authorization": f"Bearer {shown}"})[0]

        with ThreadPoolExecutor(12) as guessers:  # at once: each further guess waits longer than this block takes
            statuses = list(guessers.map(status, ["wrong"] * 60))
        assert (set(statuses), statuses.count(429) > statuses.count(401)) == ({401, 429}, True)
        answers = [console.request("/api/log-in", "POST", SENT_BY_PAGE, {"token": "wrong"}) for _ in range(2)]
        slowed = next(headers for code, headers, body in answers if code == 429 and b"TOO_MANY_GUESSES" in body)
        assert int(slowed["retry-after"]) > 0
        eventually(lambda: status(TOKEN) == 200)


def test_a_new_certificate_is_shown_without_a_restart_and_a_wrong_one_is_not(
    console: ConsoleProcess, place: Place
) -> None:
    def shown() -> str:
        return ssl.get_server_certificate((console.endpoint.host, console.endpoint.port), timeout=20)

    before = shown()
    place.authority.sign_server()
    eventually(lambda: console.events("tls_reloaded"), within_seconds=3 * LIVE_SECONDS)
    after = shown()
    assert after != before
    shutil.copy(place.callers["client"].key, place.server.key)
    eventually(lambda: console.events("tls_files_refused"), within_seconds=3 * LIVE_SECONDS)
    assert shown() == after


def test_a_token_or_certificate_that_cannot_be_used_is_one_line_and_exit_code_2(place: Place, token: Path) -> None:
    token.write_text("short")
    wrong = ("--listen-tls-cert", str(place.server.certificate), "--listen-tls-key", str(place.callers["client"].key))
    for flags, said in ((("--log-in-token-file", str(token)), "at least 16"), (wrong, "does not belong")):
        command = [str(BIN / "nsctl"), "console", "--namesrv", "127.0.0.1:1", "--listen", "127.0.0.1:0", *flags]
        done = ended(command)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_person_logs_in_and_sees_the_fleet(console: ConsoleProcess) -> None:
    with chromium() as browser:
        page = browser.new_page(ignore_https_errors=True)
        page.set_default_timeout(30_000)
        page.goto(console.page)
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("this is not the token").wait_for()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("live, 1 of 1 name server").wait_for()
        assert page.locator("dialog[open]").count() == 0
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()


def test_people_may_what_their_role_says_and_the_journal_has_their_names(tmp_path: Path) -> None:
    password, users = "a password of twelve", tmp_path / "users.toml"
    roles = {"vera": "viewer", "olga": "operator", "ada": "admin"}
    users.write_text("\n".join(f'[users.{name}]\nrole = "{role}"\npassword = "{KEPT}"' for name, role in roles.items()))
    with (
        NamesrvProcess("--data-dir", str(tmp_path / "data")) as namesrv,
        namesrv.connect() as client,
        ConsoleProcess(str(namesrv.endpoint), "--users-file", str(users), "--permit-actions") as console,
    ):
        client.registration.RegisterBroker(registration(), timeout=20)
        assert json.loads(console.request("/api/log-in")[2]) == {"token": False, "password": True}

        def log_in(name: str, said: str) -> tuple[int, dict[str, str]]:
            body = {"name": name, "password": said}
            status, headers, _ = console.request("/api/log-in", "POST", SENT_BY_PAGE, body)
            return status, {"Cookie": headers.get("set-cookie", "").split(";")[0]}

        def act(cookie: dict[str, str], action: str) -> str:
            body = {"action": action, "broker": "broker-a", "cluster": "DefaultCluster", "why": "", "preview": False}
            if action == "drain":  # of the last broker with the topic
                body["force"] = True
            answer = json.loads(console.request("/api/actions", "POST", {**SENT_BY_PAGE, **cookie}, body)[2])
            problem = answer.get("problem") or answer["results"][0].get("problem") or {"reason": "OK"}
            return str(problem["reason"])

        shown = {}
        for name in roles:
            status, shown[name] = log_in(name, password)
            assert status == 200
        seen = {name: [act(shown[name], action) for action in ("drain", "confirm")] for name in roles}
        assert seen == {
            "vera": ["ROLE_NOT_PERMITTED"] * 2,
            "olga": ["OK", "ROLE_NOT_PERMITTED"],
            "ada": ["OK", "INTENT_NOT_FOUND"],
        }
        told = json.loads(console.request("/api/overview", headers=shown["vera"])[2])
        who = [told[key] for key in ("person", "role", "permitLogOut", "permitActions", "permitConfirming")]
        assert who == ["vera", "viewer", True, False, False]
        comments = [intent.comment for intent in client.admin.ListIntents(ListIntentsRequest(), timeout=20).intents]
        assert comments == ["(console, asked by ada)"]

        with ThreadPoolExecutor(12) as guessers:  # at once: each further one has to wait longer than all of this takes
            statuses = set(guessers.map(lambda name: log_in(name, "wrong password")[0], ["nobody", "ada"] * 6))
        assert statuses == {401, 429}
        assert len(console.events("log_in_refused")) < 12
        assert password not in console.raw

        users.write_text(users.read_text().replace('"operator"', '"viewer"'))
        eventually(lambda: act(shown["olga"], "drain") == "ROLE_NOT_PERMITTED", within_seconds=LIVE_SECONDS)
        users.write_text(f'[users.ada]\nrole = "admin"\npassword = "{KEPT}"')
        eventually(
            lambda: console.request("/api/overview", headers=shown["vera"])[0] == 401, within_seconds=LIVE_SECONDS
        )
        assert console.request("/api/overview", headers=shown["ada"])[0] == 200


@pytest.mark.parametrize("change", ["the user is removed", "the password is changed", "the user logs out"])
def test_a_session_and_its_event_stream_end_when(tmp_path: Path, change: str) -> None:
    users, other = tmp_path / "users.toml", '\n[users.ada]\nrole = "admin"'
    users.write_text(f'[users.vera]\nrole = "viewer"\npassword = "{KEPT}"{other}')
    with ConsoleProcess("127.0.0.1:1", "--users-file", str(users)) as console:
        said = {"name": "vera", "password": "a password of twelve"}
        status, headers, _ = console.request("/api/log-in", "POST", SENT_BY_PAGE, said)
        assert status == 200
        shown = {"Cookie": headers["set-cookie"].split(";")[0]}
        with closing(HTTPConnection(*console.endpoint, timeout=LIVE_SECONDS)) as page:
            page.request("GET", "/api/events", headers=shown)
            events = page.getresponse()
            assert events.readline() == b"retry: 2000\n"
            match change:
                case "the user is removed":
                    users.write_text(other)
                case "the password is changed":
                    users.write_text(users.read_text().replace(KEPT, hashed("another of twelve letters")))
                case _:
                    assert console.request("/api/log-in", "DELETE", {**SENT_BY_PAGE, **shown}, {})[0] == 200
            events.read()  # to its end
        assert console.request("/api/overview", headers=shown)[0] == 401


def test_a_header_of_a_proxy_counts_only_from_where_the_proxy_is() -> None:
    for address, status in (("127.0.0.1", 200), ("10.0.0.1", 401)):
        with ConsoleProcess("127.0.0.1:1", "--proxy-header", "X-User", "--proxy-address", address) as console:
            answer = console.request("/api/overview", headers={"X-User": "maria"})
            assert answer[0] == status
            if status == 200:
                assert json.loads(answer[2])["person"] == "maria"
