"""Drain, restore and confirm a loss, at all name servers, with a preview."""

from __future__ import annotations

from typing import Any, Literal, Self

from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from pydantic import BaseModel, ConfigDict, Field, model_validator

from groundwork.grpc_errors import CallError
from nsctl.console.log_in import Role
from nsctl.console.observer import Fleet
from nsctl.console.views.journal import problem_json
from nsctl.output import row

MAX_WHY = 400
"""Longest comment of a viewer: a name server takes 500 characters, and who asked is added."""

REQUESTS: dict[str, Any] = {
    "drain": pb.WipeWritePermOfBrokerRequest,
    "restore": pb.AddWritePermOfBrokerRequest,
    "confirm": pb.ConfirmBrokerLossRequest,
}
"""What each action asks of a name server."""


class Action(BaseModel):
    """What a viewer asks for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    action: Literal["drain", "restore", "confirm"]
    """Take write permission from a broker group, give it back, or confirm that its unconfirmed brokers are gone."""
    broker: str | None = Field(None, min_length=1, max_length=127)
    """Name of the group. Without one, a loss is confirmed of all that the guard holds."""
    cluster: str | None = Field(None, min_length=1, max_length=127)
    """Its cluster."""
    why: str = Field("", max_length=MAX_WHY)
    """For the journal."""
    force: bool = False
    """Continue although producers of applications lose topics."""
    preview: bool
    """Change nothing, say what would happen. Must be said: nobody drains by leaving something out."""

    @model_validator(mode="after")
    def _of_a_group(self) -> Self:
        if (self.broker is None) != (self.cluster is None):
            raise ValueError("broker and cluster belong together, and one of them is missing")
        if self.broker is None and self.action != "confirm":
            raise ValueError(f"broker is missing: {self.action} is about one group")
        return self

    @property
    def needs(self) -> Role:
        """The role of those who may ask for it."""
        return Role.ADMIN if self.action == "confirm" else Role.OPERATOR


async def act(fleet: Fleet, action: Action, viewer: str) -> list[dict[str, Any]]:
    """Does it, or previews it, at every name server that answers; what came of it at each.

    Args:
        fleet: The name servers.
        viewer: Who asked, for the journal: name servers see the console alone.
    """
    kind = REQUESTS[action.action]
    request = kind(
        broker_name=action.broker,
        cluster_name=action.cluster,
        comment=f"{action.why} (console, asked by {viewer})".strip(),
        validate_only=action.preview,
    )
    if action.force and "force" in kind.DESCRIPTOR.fields_by_name:
        request.force = True
    answers = await fleet.each(lambda server: server.call(kind.DESCRIPTOR.name.removesuffix("Request"), request))
    return [_result(answer) for answer in answers]


def _result(answer: Message | CallError) -> dict[str, Any]:
    if isinstance(answer, CallError):
        return {"problem": problem_json(answer)}
    told = row(answer)
    return {
        **told["blast_radius"],
        "awaits_registration": not told.get("group_registered", True),
        "in_use": told.get("in_use", {"topic_count": 0, "topics": []}),
    }
