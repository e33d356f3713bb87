"""The errors that callers get: their base class, and those that more than one program raises.

Pure: the program's ``ErrorTable`` has the code and reason of each. Code that raises one has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping


class CallRefused(Exception):
    """Base of all errors that callers get."""

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = dict(metadata or {})
        """The changing parts of the message, for programs."""
        self.retry_after_seconds: float | None = None
        """When to come back, if this one error knows it; None: the usual time for errors of its kind."""


class MalformedRequest(CallRefused):
    """The request's bytes are not a message of the call's type."""

    def __init__(self, message_name: str) -> None:
        super().__init__(f"the request is not a {message_name}", {"message": message_name})


class InvalidField(CallRefused):
    """A field of the request breaks its rule."""

    def __init__(self, field: str, problem: str) -> None:
        """Names the field's path in the request, and says what is wrong with its value and what the rule is."""
        super().__init__(f"{field}: {problem}", {"field": field})
        self.field = field
        self.problem = problem


class LimitExceeded(CallRefused):
    """Something is larger or more than a limit allows."""

    def __init__(self, name: str, value: int, limit: int, caller: str | None = None) -> None:
        """Names what is over its limit, by how much, the limit, and whose it is where callers have shares."""
        metadata = {"name": name, "value": str(value), "limit": str(limit)}
        whose = ""
        if caller is not None:
            metadata["caller"] = caller
            whose = f" for {caller}"
        super().__init__(f"{name}: {value} is over the limit of {limit}{whose}", metadata)


class NotDurable(CallRefused):
    """The disk refused the change, so the change was not made; or it refused what a call asks for."""

    def __init__(self, problem: str, what: str = "the change could not be made durable and was not made") -> None:
        super().__init__(f"{what}: {problem}")


class NotAuthenticated(CallRefused):
    """The call carries no credentials that say who calls."""

    def __init__(self, problem: str) -> None:
        """Says what is missing or wrong, and what is taken. Never repeats a token."""
        super().__init__(f"who calls? {problem}")


class NotPermitted(CallRefused):
    """The caller is known, but its permit does not cover the call."""

    def __init__(self, principal: str, permission: str, names: str | None = None) -> None:
        """Names the caller, what it lacks the permission to do, and the broker group or topic it is about."""
        what = permission if names is None else f"{permission} {names}"
        metadata = {"principal": principal, "permission": permission}
        super().__init__(f"{principal} may not {what}", metadata if names is None else {**metadata, "names": names})


class SlowReader(CallRefused):
    """The reader of a stream fell too far behind and is cut. Each program says in its own words what to do then."""


class InternalDefect(CallRefused):
    """Something that should not happen. Its text never leaves the process; the caller gets an id to quote."""

    def __init__(self, error_id: str) -> None:
        super().__init__(f"internal defect; the log has it under {error_id}", {"error_id": error_id})
