"""The reasons that the comments of the contract promise for each call, and a check that no call sends another.

Comments have the form ``Errors: NAME, NAME (explanation), NAME.`` Whatever is outside parentheses there and written in
capitals is the name of a reason. The comment of ErrorReason lists those that any call of its package may return.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache

from namesrv_common.grpc_errors import RichError
from namesrv_common.server.rpc_handlers import Failures
from tests.support.pages import ROOT

PROTOS = ROOT / "protos"
REASONS_OF = {
    "broker_agent_api": "broker_agent_api/v1/error_reason.proto",
    "namesrv_api": "namesrv_api/v1/error_reason.proto",
    "namesrv_internal": "namesrv_api/v1/error_reason.proto",
}
"""The file that has the reasons of a package's calls."""

_NAME = re.compile(r"\b[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)*\b")
_IN_PARENTHESES = re.compile(r"\([^()]*\)")
_ERRORS = re.compile(r"\bErrors: ([^\n]*)")
_ANY_CALL = re.compile(r"Any call may return ([^\n]*)")
_SERVICE = re.compile(r"^service (\w+) \{", re.MULTILINE)
_RPC = re.compile(r"((?:  //.*\n)*)  rpc (\w+)\(")
_ENUM = re.compile(r"((?://.*\n)+)enum ErrorReason \{")


@cache
def promised() -> Mapping[str, frozenset[str]]:
    """The reasons that the comment of each call promises, by the full name of the call, without those of any call."""
    found = {}
    for file in sorted(PROTOS.rglob("*_service.proto")):
        text = file.read_text(encoding="utf-8")
        (service,) = _SERVICE.findall(text)
        for comment, call in _RPC.findall(text):
            errors = _ERRORS.findall(_joined(comment))
            assert len(errors) == 1, f"the comment of {call} has not one list of 'Errors: NAME, NAME (explanation).'"
            name = f"{file.parent.parent.name}.{file.parent.name}.{service}.{call}"
            found[name] = frozenset(_names_in(errors[0]))
    return found


@cache
def of_any_call(package: str) -> frozenset[str]:
    """The reasons that any call of a package may return."""
    (comment,) = _ENUM.findall((PROTOS / REASONS_OF[package]).read_text(encoding="utf-8"))
    return frozenset(_names_in(" ".join(_ANY_CALL.findall(_joined(comment)))))


sent: set[tuple[str, str]] = set()
"""What servers of this process have sent: the full name of the call, and the reason."""


def fail_where_others_are_sent() -> None:
    """Has every server of this process, and of those forked from it, fail a call that ends with another reason."""
    answer = Failures.answer

    def checked(failures: Failures, error: BaseException, call: str) -> RichError:
        rich = answer(failures, error, call)
        if call in promised() and rich.reason not in promised()[call] | of_any_call(call.split(".", maxsplit=1)[0]):
            raise AssertionError(f"{call} sends {rich.reason}, which its comment does not promise: {rich.message}")
        sent.add((call, rich.reason))
        return rich

    Failures.answer = checked  # type: ignore[method-assign, assignment]


def _joined(comment: str) -> str:
    """A comment with a line for each of its paragraphs."""
    return " ".join(line.strip().removeprefix("//").strip() or "\n" for line in comment.splitlines())


def _names_in(errors: str) -> Iterator[str]:
    while errors != (errors := _IN_PARENTHESES.sub("", errors)):
        pass
    return iter(_NAME.findall(errors))
