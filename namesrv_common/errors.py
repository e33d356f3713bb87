"""The error that callers get, and those of its reasons that more than one program has.

Pure: the program's ``Failures`` have the gRPC code and the retry hint of each reason. Code that raises ``Refused`` has
changed nothing. Docstrings name the reason: "Raises NOT_DURABLE" stands for ``Refused`` with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that breaks its rule."""

    field: str
    """Path of the field in the request, such as ``topic_configs[3].perm``."""
    description: str
    """What is wrong with the value, and the rule."""


class Refused(Exception):
    """A call is refused, for one of the reasons of the program's contract."""

    def __init__(
        self,
        reason: str,
        text: str,
        /,
        *,
        violations: Iterable[FieldViolation] = (),
        retry_after_seconds: float | None = None,
        **metadata: object,
    ) -> None:
        """Takes the reason and the text for people.

        Args:
            violations: The fields that break their rules.
            retry_after_seconds: Time until a retry helps. None means the usual time of its reason.
            metadata: The changing parts of the text, for programs. Their names are the keys. None: there is none.
        """
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.violations = tuple(violations)
        self.retry_after_seconds = retry_after_seconds
        self.metadata = {key: str(value) for key, value in metadata.items() if value is not None}


MAX_VIOLATIONS = 100
"""Most violations that one error lists."""


class FieldProblems:
    """Collects what is wrong with the fields of one request, so that its error names all of them.

    Each independent check is made in a ``with`` block of its own; ``raise_any`` follows the last one.
    """

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []

    def __enter__(self) -> None:
        """A check begins."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Catches INVALID_FIELD and raises everything else."""
        if not isinstance(error, Refused) or error.reason != CommonReason.INVALID_FIELD:
            return False
        self.add(error)
        return True

    def add(self, error: Refused) -> None:
        """Adds what a check raised. Raises at once if that is no INVALID_FIELD, or if there are enough."""
        if error.reason != CommonReason.INVALID_FIELD:
            raise error
        self._found += error.violations
        if len(self._found) >= MAX_VIOLATIONS:
            self.raise_any()

    def raise_any(self) -> None:
        """Raises INVALID_FIELD with all that was found, if anything was."""
        if not self._found:
            return
        first, more = self._found[0], len(self._found) - 1
        text = f"{first.field}: {first.description}" + (f" (and {more} more)" if more else "")
        violations = self._found[:MAX_VIOLATIONS]
        raise Refused(CommonReason.INVALID_FIELD, text, violations=violations, field=first.field)


class CommonReason(StrEnum):
    """The reasons that more than one program has. Each program's own enumeration repeats those that it sends."""

    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    INVALID_FIELD = "INVALID_FIELD"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    NOT_DURABLE = "NOT_DURABLE"
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
    NOT_PERMITTED = "NOT_PERMITTED"
    SLOW_READER = "SLOW_READER"
    INTERNAL_DEFECT = "INTERNAL_DEFECT"


def invalid_field(field: str, problem: str) -> Refused:
    """A field breaks its rule. Takes its path in the request, and what is wrong with the value and what the rule is."""
    violations = (FieldViolation(field, problem),)
    return Refused(CommonReason.INVALID_FIELD, f"{field}: {problem}", violations=violations, field=field)


def limit_exceeded(
    name: str, value: int, limit: int, caller: str | None = None, *, retry_after_seconds: float | None = None
) -> Refused:
    """Something is larger or more than a limit allows. Takes whose limit it is, where callers have shares."""
    text = f"{name}: {value} is over the limit of {limit}" + ("" if caller is None else f" for {caller}")
    return Refused(
        CommonReason.LIMIT_EXCEEDED,
        text,
        retry_after_seconds=retry_after_seconds,
        name=name,
        value=value,
        limit=limit,
        caller=caller,
    )


def not_durable(problem: str, what: str = "the change could not be made durable and was not made") -> Refused:
    """The disk refused the change, so the change was not made; or it refused what a call asks for."""
    return Refused(CommonReason.NOT_DURABLE, f"{what}: {problem}")


def not_authenticated(problem: str) -> Refused:
    """The call has no credentials that name its caller. Takes what is missing or wrong, without the token."""
    return Refused(CommonReason.NOT_AUTHENTICATED, f"who calls? {problem}")


def not_permitted(principal: str, permission: str, names: str | None = None, address: str | None = None) -> Refused:
    """The caller lacks a permission. Takes the broker group or topic and the address, where it is about one."""
    about = "" if names is None else f" {names}" if address is None else f" {names} at {address}"
    return Refused(
        CommonReason.NOT_PERMITTED,
        f"{principal} may not {permission}{about}",
        principal=principal,
        permission=permission,
        names=names,
        address=address,
    )


def internal_defect(error_id: str) -> Refused:
    """Something that should not happen. Its text never leaves the process; the caller gets an id to quote."""
    text = f"internal defect; the log has it under {error_id}"
    return Refused(CommonReason.INTERNAL_DEFECT, text, error_id=error_id)
