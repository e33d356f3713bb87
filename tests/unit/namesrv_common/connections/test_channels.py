"""What a client shows: tokens and certificates that go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from namesrv_api.v1.route_service_pb2 import GetTopicRouteRequest
from namesrv_api.v1.route_service_pb2_grpc import RouteServiceStub
from pydantic_settings import SettingsConfigDict

from namesrv_common.client.channels import ClientFiles, ClientSecurity, RenewedChannel
from namesrv_common.process.settings_cli import ProgramSettings
from namesrv_common.process.tls_settings import ClientSecuritySettings, ListenerSecuritySettings
from namesrv_common.tls.certificates import MAX_TOKEN_LENGTH, CertificateError, read_token
from tests.support.secured.certificates import Authority


class Both(ListenerSecuritySettings, ClientSecuritySettings, ProgramSettings):
    """The settings of a program that listens and calls."""

    model_config = SettingsConfigDict(env_prefix="BOTH_")


@pytest.mark.parametrize("content", ["secret", "secret\n", " secret \r\n"])
def test_a_token_is_the_only_line_of_its_file(tmp_path: Path, content: str) -> None:
    (path := tmp_path / "token").write_text(content)
    assert read_token(path) == "secret"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "holds no token"),
        ("\n", "holds no token"),
        ("a b", "one line of visible ASCII"),
        ("a\nb", "one line of visible ASCII"),
        ("ä", "one line of visible ASCII"),
        ("x" * (MAX_TOKEN_LENGTH + 1), f"at most {MAX_TOKEN_LENGTH}"),
    ],
)
def test_what_is_no_token_is_refused_and_not_repeated(tmp_path: Path, content: str, problem: str) -> None:
    (path := tmp_path / "token").write_text(content)
    with pytest.raises(CertificateError, match=problem):
        read_token(path)


def test_nothing_at_all_is_no_tls_and_a_token_alone_is_refused() -> None:
    assert ClientFiles.of(None) is None
    for alone in ({"token": Path("t")}, {"server_name": "x"}, {"certificate": Path("c"), "key": Path("k")}):
        with pytest.raises(CertificateError, match="needs tls_ca"):
            ClientFiles.of(None, **alone)
    with pytest.raises(CertificateError, match="needs its key"):
        ClientFiles.of(Path("ca"), Path("c"))


def test_files_that_cannot_be_used_are_told_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    a, b = authority.sign("a"), authority.sign("b")
    ClientSecurity(ClientFiles(authority.path, *a))
    for files in (ClientFiles(a.key), ClientFiles(authority.path, a.certificate, b.key)):
        with pytest.raises(CertificateError):
            ClientSecurity(files)
    with pytest.raises(CertificateError, match="No such file"):
        ClientSecurity(ClientFiles(authority.path, token=tmp_path / "gone"))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"tls_cert": "c"}, "tls_cert is set, but tls_key is not"),
        ({"tls_key": "k"}, "tls_key is set, but tls_cert is not"),
        ({"tls_client_ca": "ca"}, "tls_client_ca is set, but tls_cert is not"),
        ({"token_file": "t"}, "token_file is set, but tls_ca is not"),
        ({"tls_server_name": "n"}, "tls_server_name is set, but tls_ca is not"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Both.load(None, values)


def test_one_certificate_is_for_both_sides_of_a_program(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("a")
    values = {"tls_cert": pair.certificate, "tls_key": pair.key, "tls_ca": authority.path}
    settings = Both.load(None, values)
    security = settings.client_security()
    assert security is not None
    assert security.files == ClientFiles(authority.path, *pair)
    assert settings.listener_tls() is not None
    assert Both.load(None, {}).client_security() is None
    assert Both.load(None, {}).listener_tls() is None


class Connection:
    """A connection that answers every call with its name, and is closed once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.is_closed = False

    def unary_unary(self, *_: object) -> Any:
        return self._answer

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def _answer(self) -> str:
        assert not self.is_closed
        return self._name


def test_credentials_that_fail_once_do_not_retire_the_connection() -> None:
    connections = iter([Connection("old"), OSError("planted"), Connection("new")])
    generation = 1

    def connect() -> tuple[int, grpc.Channel]:
        made = next(connections)
        if isinstance(made, OSError):
            raise made
        return generation, cast(grpc.Channel, made)

    channel = RenewedChannel(connect, lambda: generation)
    ask = channel.unary_unary("/a.B/C")
    assert ask() == "old"
    generation = 2
    with pytest.raises(OSError, match="planted"):
        ask()
    assert [ask(), ask()] == ["new", "new"]


def test_the_first_call_after_close_raises_and_does_not_end_the_process() -> None:
    channel = RenewedChannel(lambda: (1, grpc.insecure_channel("127.0.0.1:1")), lambda: 1)
    stub = RouteServiceStub(channel)
    channel.close()
    with pytest.raises(ValueError, match="closed channel"):
        stub.GetTopicRoute(GetTopicRouteRequest(topic="T"))
