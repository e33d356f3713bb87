from __future__ import annotations

import pytest
from broker_agent_api.v1 import error_reason_pb2

from broker_agent.clients import errors
from broker_agent.rpc_errors import CallRefused

REASONS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CallRefused)]


@pytest.mark.parametrize("kind", [kind for kind in REASONS if kind is not CallRefused])
def test_every_reason_is_in_the_contract(kind: type[CallRefused]) -> None:
    assert f"ERROR_REASON_{kind.reason}" in error_reason_pb2.ErrorReason.keys()  # noqa: SIM118 - an enum has no other
