"""What the doctor can find: each kind has a code, a severity, a command, a remedy, a paragraph of the runbook."""

# ruff: noqa: PIE796 - severities and commands repeat, the values that __new__ makes do not

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Self

RUNBOOK = "docs/runbook.md"
"""Has a paragraph for each code, under an anchor of that name."""


class Severity(IntEnum):
    """How bad a finding is. The worst comes first."""

    PROBLEM = 0
    """Clients or brokers suffer now."""
    WARNING = 1
    """Something will go wrong, or did lately."""
    INFO = 2
    """Nothing is wrong; an operator of the next shift should know."""


_P, _W, _I = Severity


class Code(Enum):
    """Kinds of findings, each with its severity, the command that shows more, and the remedy if it is always one."""

    severity: Severity
    more: str
    remedy: str

    def __new__(cls, severity: Severity, more: str, remedy: str = "") -> Self:
        code = object.__new__(cls)
        code._value_ = len(cls.__members__)
        code.severity, code.more, code.remedy = severity, more, remedy
        return code

    UNREACHABLE = _P, "nsctl status"
    SERVER_ERROR = _P, "nsctl status", "the server runs: look for the error in its log before you restart it"
    WRONG_PORT = _P, "nsctl status"
    TLS_REFUSED = _P, "nsctl status"
    CERTIFICATE_ENDED = _P, "nsctl status"
    CERTIFICATE_ENDS_SOON = _W, "nsctl doctor", "renew it; the name server reads it again by itself"
    WARMING = _W, "nsctl brokers --unconfirmed", "wait until its brokers are back"
    GUARD_HOLDS_BROKERS = _P, "nsctl brokers --unconfirmed"
    BROKERS_UNCONFIRMED = _W, "nsctl brokers --unconfirmed", "wait for them, or see why they do not register"
    EVENT_LOOP_HELD_UP = _W, "nsctl status -o json", "give it more CPU, or find the callers that load it"
    DATA_DIR_NOT_WRITTEN = _P, "nsctl status -o json"
    CLOCK_SKEW = _W, "nsctl status", "set the clocks: times shown and ends of intents go by them"
    NO_BROKERS = _W, "nsctl history", "see which name servers the brokers are given (RocketMQ: namesrvAddr)"
    BROKER_SILENT = _W, "nsctl brokers --silent 30s"
    BROKER_WITHOUT_CHANNEL = _W, "nsctl brokers --no-channel", "run the broker agent beside it"
    BROKER_ADDRESS_LOCAL = _W, "nsctl brokers", "set the address that clients call (RocketMQ: brokerIP1)"
    BROKER_ID_CONTESTED = _P, "nsctl history --cause REPLACED"
    BROKER_LOST = _W, "nsctl history --since 1h", "see its machine, its own log, and the log of its agent if it has one"
    BROKER_CAME_BACK = _I, "nsctl history --since 1h"
    GROUP_WITHOUT_MASTER = _P, "nsctl clusters", "start the master, or promote a slave"
    GROUP_NAME_TWICE = _W, "nsctl clusters"
    REGISTRATIONS_REFUSED = _P, "nsctl status -o json", "see the broker and the reason in its log"
    TOPICS_SKIPPED = _W, "nsctl status -o json", "see the broker and the reason in its log"
    TOPICS_NOT_WRITABLE = _P, "nsctl explain TOPIC"
    TOPICS_DRAINED = _W, "nsctl intents", "undrain a broker, or stop the producers of these topics"
    INTENT_IN_FORCE = _I, "nsctl intents", "`nsctl intents` lists all"
    INTENT_FORGOTTEN = _W, "nsctl intents"
    NOT_ALLOWED = _I, "nsctl intents", "show a certificate or token that may administer"
    VERSIONS_DIFFER = _W, "nsctl status", "finish the upgrade"
    SAME_NAME_TWICE = _W, "nsctl status", "give each a --name of its own"
    NAME_SERVERS_DISAGREE = _P, "nsctl diff", "`nsctl diff` says which"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, or will be, or should be known."""

    code: Code
    what: str
    remedy: str = ""
    """What to do about it; empty for the remedy that the code has."""
    more: str = ""
    """A command that shows more; empty for the one that the code has."""
    subject: object = None
    """What it is about, if several name servers say it in words that differ."""
    at: tuple[str, ...] = ()
    """The name servers that say it; empty if it is about all together."""

    @property
    def do(self) -> str:
        """What to do about it."""
        return self.remedy or self.code.remedy

    def row(self) -> dict[str, object]:
        """As programs get it."""
        return {
            "severity": self.code.severity.name.lower(),
            "code": self.code.name,
            "name_servers": list(self.at),
            "what": self.what,
            "do": self.do,
            "more": self.more or self.code.more,
            "runbook": f"{RUNBOOK}#{self.code.name.lower()}",
        }


def merged(found: Iterable[tuple[str, Finding]]) -> list[Finding]:
    """Each fact once, the worst first, with the name servers that say it; the first one's words count.

    Args:
        found: Findings, each with the name server that says it, or with an empty text.
    """
    by_fact: dict[object, Finding] = {}
    for name, one in found:
        fact = (one.code, re.sub(r"[0-9.:]+Z", "", one.what) if one.subject is None else one.subject)
        known = by_fact.setdefault(fact, one)
        by_fact[fact] = replace(known, at=(*known.at, name) if name else known.at)
    return sorted(by_fact.values(), key=lambda one: (one.code.severity, one.code.name, one.what))


def first_few(items: Sequence[str], most: int = 5) -> str:
    """The first few of some names."""
    return ", ".join(items[:most]) + (", ..." if len(items) > most else "")
