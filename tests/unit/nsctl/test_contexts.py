"""Which name servers a command is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from namesrv_common.client.channels import ClientFiles
from namesrv_common.endpoints import Endpoint
from nsctl.contexts import ContextError, client_files, contexts_file, name_servers

A, B = Endpoint("a", 9876), Endpoint("b", 9876)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    file = tmp_path / ".config" / "nsctl" / "contexts.toml"
    file.parent.mkdir(parents=True)
    file.write_text('current = "lab"\n[contexts.lab]\nnamesrv = "a:9876"\n[contexts.live]\nnamesrv = "a:9876;b:9876"\n')
    return tmp_path


def test_a_flag_wins_over_a_context_that_over_the_variable_and_that_over_the_file(home: Path) -> None:
    of_home = {"HOME": str(home)}
    variable = of_home | {"NAMESRV_ADDR": "b:9876"}
    assert name_servers("a:9876", "live", variable) == (A,)
    assert name_servers(None, "live", variable) == (A, B)
    assert name_servers(None, None, variable) == (B,)
    assert name_servers(None, None, of_home) == (A,)


@pytest.mark.parametrize(
    ("listen", "called"),
    [("0.0.0.0:9876", "127.0.0.1:9876"), ("[::]:9880", "[::1]:9880"), ("10.0.0.1:9876", "10.0.0.1:9876")],
)
def test_in_a_container_its_own_name_server_is_asked_unless_something_names_others(
    tmp_path: Path, home: Path, listen: str, called: str
) -> None:
    variable = {"NAMESRV_LISTEN": listen, "HOME": str(tmp_path / "nowhere")}
    assert name_servers(None, None, variable) == (Endpoint.parse(called),)
    assert name_servers(None, None, variable | {"HOME": str(home)}) == (A,)
    assert name_servers(None, None, variable | {"NAMESRV_ADDR": "b:9876"}) == (B,)


def test_the_file_is_where_the_environment_says(tmp_path: Path) -> None:
    assert contexts_file({"HOME": str(tmp_path)}) == tmp_path / ".config/nsctl/contexts.toml"
    assert contexts_file({"XDG_CONFIG_HOME": "/etc/x", "HOME": "/h"}) == Path("/etc/x/nsctl/contexts.toml")
    assert contexts_file({"NSCTL_CONTEXTS": "/y.toml", "XDG_CONFIG_HOME": "/x"}) == Path("/y.toml")


def test_a_user_without_a_home_has_no_contexts_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert name_servers(None, None, {"NAMESRV_ADDR": "b:9876"}) == (B,)
    with pytest.raises(ContextError, match=r"--namesrv .*NAMESRV_ADDR, or write ~/\.config/nsctl/contexts\.toml"):
        name_servers(None, None, {})


LAB = 'current = "lab"\n[contexts.lab]\nnamesrv = "a:9876"\n'


@pytest.mark.parametrize(
    ("text", "context", "problem"),
    [
        ("current = ", None, "Invalid value"),
        ("current = " + "1" * 5_000, None, "Exceeds the limit"),
        ("", None, "current is missing"),
        ("a = " + "[" * 3_000, None, "maximum recursion depth exceeded"),
        ('current = "x"', None, "there is no context 'x'; there are: none"),
        ('[contexts.lab]\nnamesrv = "a:1"', "x", "there is no context 'x'; there are: lab"),
        ('current = "x"\n[contexts.x]\n', None, r"contexts\.x\.namesrv is missing"),
        ('current = "x"\n[contexts.x]\nnamesrv = "a"', None, r"contexts\.x\.namesrv: address 'a' has no port"),
        (f'{LAB}token_file = "t"', None, r"contexts\.lab: .* needs tls_ca"),
        (f"{LAB}tls_ca = 1", None, r"contexts\.lab: tls_ca is 1; it must be a text"),
        (f'{LAB}tls_ca = ""', None, r"tls_ca is ''; it must be a text"),
        (f'{LAB}tls_ca = "a"\ntls_cert = "c"', None, "a certificate needs its key"),
    ],
)
def test_a_file_that_makes_no_sense_is_named_with_its_problem(
    home: Path, text: str, context: str | None, problem: str
) -> None:
    environment = {"HOME": str(home)}
    file = contexts_file(environment)
    file.write_text(text)
    with pytest.raises(ContextError, match=problem) as raised:
        assert [name_servers(None, context, environment), client_files({}, None, context, environment)]
    assert str(raised.value).startswith(str(file))


def test_what_a_context_says_about_tls_is_relative_to_its_file(home: Path) -> None:
    file = contexts_file({"HOME": str(home)})
    tls = 'tls_ca = "ca.pem"\ntls_cert = "/abs/c.pem"\ntls_key = "k"\ntls_server_name = "ns"\n'
    file.write_text(f"{LAB}{tls}")
    of_context = ClientFiles(file.parent / "ca.pem", Path("/abs/c.pem"), file.parent / "k", server_name="ns")
    of_home = {"HOME": str(home)}
    assert client_files({}, None, None, of_home) == client_files({}, None, "lab", of_home) == of_context
    of_flags = client_files({"tls_ca": "x"}, None, "lab", of_home)
    assert of_flags == ClientFiles(Path("x")), "flags win as a whole"
    assert client_files({}, "b:9876", None, of_home) is None, "a context counts only if it names the name servers"
    assert client_files({}, None, None, of_home | {"NAMESRV_ADDR": "b:9876"}) is None
