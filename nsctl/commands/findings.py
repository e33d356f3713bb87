"""What the doctor can find: each kind has a code, a severity, a command that shows more, a paragraph of the runbook."""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import NamedTuple

from nsctl.output import Row

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


class Code(Enum):
    """Kinds of findings."""

    UNREACHABLE = auto()
    TLS_REFUSED = auto()
    CERTIFICATE_ENDED = auto()
    CERTIFICATE_ENDS_SOON = auto()
    WARMING = auto()
    GUARD_HOLDS_BROKERS = auto()
    BROKERS_UNCONFIRMED = auto()
    EVENT_LOOP_HELD_UP = auto()
    DATA_DIR_NOT_WRITTEN = auto()
    CLOCK_SKEW = auto()
    BROKERS_DOUBTED = auto()
    BROKERS_HANDED_OVER = auto()
    BROKER_SILENT = auto()
    BROKER_WITHOUT_CHANNEL = auto()
    BROKER_LOST = auto()
    BROKER_CAME_BACK = auto()
    GROUP_WITHOUT_MASTER = auto()
    GROUP_NAME_TWICE = auto()
    TOPICS_NOT_WRITABLE = auto()
    TOPICS_DRAINED = auto()
    INTENT_IN_FORCE = auto()
    INTENT_FORGOTTEN = auto()
    NOT_ALLOWED = auto()
    VERSIONS_DIFFER = auto()
    SAME_NAME_TWICE = auto()
    NAME_SERVERS_DISAGREE = auto()

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return KINDS[self][0]

    @property
    def anchor(self) -> str:
        """Where the runbook tells what to do."""
        return f"{RUNBOOK}#{self.name.lower()}"


KINDS: dict[Code, tuple[Severity, str]] = {
    Code.UNREACHABLE: (Severity.PROBLEM, "nsctl status"),
    Code.TLS_REFUSED: (Severity.PROBLEM, "nsctl status"),
    Code.CERTIFICATE_ENDED: (Severity.PROBLEM, "nsctl status"),
    Code.CERTIFICATE_ENDS_SOON: (Severity.WARNING, "nsctl doctor"),
    Code.WARMING: (Severity.WARNING, "nsctl brokers --unconfirmed"),
    Code.GUARD_HOLDS_BROKERS: (Severity.PROBLEM, "nsctl brokers --unconfirmed"),
    Code.BROKERS_UNCONFIRMED: (Severity.WARNING, "nsctl brokers --unconfirmed"),
    Code.EVENT_LOOP_HELD_UP: (Severity.WARNING, "nsctl status -o json"),
    Code.DATA_DIR_NOT_WRITTEN: (Severity.PROBLEM, "nsctl status -o json"),
    Code.CLOCK_SKEW: (Severity.WARNING, "nsctl status"),
    Code.BROKERS_DOUBTED: (Severity.WARNING, "nsctl brokers"),
    Code.BROKERS_HANDED_OVER: (Severity.INFO, "nsctl brokers"),
    Code.BROKER_SILENT: (Severity.WARNING, "nsctl brokers --silent 30s"),
    Code.BROKER_WITHOUT_CHANNEL: (Severity.WARNING, "nsctl brokers --no-channel"),
    Code.BROKER_LOST: (Severity.WARNING, "nsctl history --since 1h"),
    Code.BROKER_CAME_BACK: (Severity.INFO, "nsctl history --since 1h"),
    Code.GROUP_WITHOUT_MASTER: (Severity.PROBLEM, "nsctl cluster"),
    Code.GROUP_NAME_TWICE: (Severity.WARNING, "nsctl cluster"),
    Code.TOPICS_NOT_WRITABLE: (Severity.PROBLEM, "nsctl explain TOPIC"),
    Code.TOPICS_DRAINED: (Severity.INFO, "nsctl intents"),
    Code.INTENT_IN_FORCE: (Severity.INFO, "nsctl intents"),
    Code.INTENT_FORGOTTEN: (Severity.WARNING, "nsctl intents"),
    Code.NOT_ALLOWED: (Severity.INFO, "nsctl intents"),
    Code.VERSIONS_DIFFER: (Severity.WARNING, "nsctl status"),
    Code.SAME_NAME_TWICE: (Severity.WARNING, "nsctl status"),
    Code.NAME_SERVERS_DISAGREE: (Severity.PROBLEM, "nsctl diff"),
}
"""How bad each is, and the command that shows more."""


class Finding(NamedTuple):
    """Something that is wrong, or will be, or should be known."""

    code: Code
    about: str
    """The name server, or ``all``."""
    what: str
    do: str
    """What to do about it."""
    more: str = ""
    """A command that shows more; empty for the one that the code has."""

    @property
    def order(self) -> tuple[int, str, str, str]:
        """The worst first."""
        return self.code.severity, self.about, self.code.name, self.what

    def row(self) -> Row:
        """As it is shown."""
        return {
            "severity": self.code.severity.name.lower(),
            "code": self.code.name,
            "about": self.about,
            "what": self.what,
            "do": self.do,
            "more": self.more or KINDS[self.code][1],
            "runbook": self.code.anchor,
        }
