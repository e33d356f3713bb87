from __future__ import annotations

from broker_agent_api.v1.error_reason_pb2 import ErrorReason

from broker_agent.errors import CODES, Reason


def test_the_contract_and_the_table_have_the_same_reasons() -> None:
    contract = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 # not a mapping
    assert CODES.keys() == set(Reason) == contract - {"UNSPECIFIED"}
