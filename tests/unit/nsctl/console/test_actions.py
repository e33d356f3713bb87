"""What a viewer can ask for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf.message import Message
from namesrv_api.v1 import admin_service_pb2 as pb
from pydantic import ValidationError

from nsctl.console.log_in import Role
from nsctl.console.observer import Fleet
from nsctl.console.views.actions import Action, act
from tests.support.fakes.observed_name_server import FakeNameServer
from tests.support.timing import console_timing
from tests.support.virtual_clock import VirtualClock

GROUP = {"broker": "broker-a", "cluster": "east"}


class Changed(FakeNameServer):
    """Takes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Message] = []

    async def call(self, name: str, request: Message) -> Message:
        self.asked.append(request)
        answers: dict[str, Message] = {
            "WipeWritePermOfBroker": pb.WipeWritePermOfBrokerResponse(blast_radius={}),
            "AddWritePermOfBroker": pb.AddWritePermOfBrokerResponse(blast_radius={}),
            "ConfirmBrokerLoss": pb.ConfirmBrokerLossResponse(blast_radius={}),
        }
        return answers[name]


def action(kind: str, **group: Any) -> Action:
    values: dict[str, Any] = {"action": kind, "why": "new disks", "preview": True, **group}
    return Action.model_validate(values)


def asked(wanted: Action) -> Message:
    server = Changed()
    asyncio.run(act(Fleet([server], console_timing(VirtualClock())), wanted, "maria"))
    (request,) = server.asked
    return request


COMMENT = "new disks (console, asked by maria)"


@pytest.mark.parametrize(
    ("wanted", "request_"),
    [
        (
            action("drain", **GROUP),
            pb.WipeWritePermOfBrokerRequest(
                broker_name="broker-a", cluster_name="east", comment=COMMENT, validate_only=True
            ),
        ),
        (
            action("drain", force=True, **GROUP),
            pb.WipeWritePermOfBrokerRequest(
                broker_name="broker-a", cluster_name="east", comment=COMMENT, validate_only=True, force=True
            ),
        ),
        (
            action("restore", force=True, **GROUP),
            pb.AddWritePermOfBrokerRequest(
                broker_name="broker-a", cluster_name="east", comment=COMMENT, validate_only=True
            ),
        ),
        (
            action("confirm", **GROUP),
            pb.ConfirmBrokerLossRequest(
                broker_name="broker-a", cluster_name="east", comment=COMMENT, validate_only=True
            ),
        ),
        (action("confirm"), pb.ConfirmBrokerLossRequest(comment=COMMENT, validate_only=True)),
    ],
)
def test_an_action_is_one_call_about_one_group_or_all_that_the_guard_holds(wanted: Action, request_: Message) -> None:
    assert asked(wanted) == request_


@pytest.mark.parametrize(
    ("kind", "group", "problem"),
    [
        ("drain", {}, "broker is missing: drain is about one group"),
        ("restore", {}, "broker is missing: restore is about one group"),
        ("confirm", {"broker": "broker-a"}, "belong together"),
        ("confirm", {"cluster": "east"}, "belong together"),
        ("confirm", {"broker": "", "cluster": "east"}, "at least 1 character"),
    ],
)
def test_only_a_loss_is_confirmed_of_all_and_a_group_is_named_whole(
    kind: str, group: dict[str, str], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        action(kind, **group)


def test_a_loss_is_for_admins_alone() -> None:
    assert [action(kind, **GROUP).needs for kind in ("drain", "restore", "confirm")] == [
        Role.OPERATOR,
        Role.OPERATOR,
        Role.ADMIN,
    ]
