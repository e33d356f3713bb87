"""The server and the wire contract fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_type_hints

from google.protobuf.descriptor import ServiceDescriptor
from namesrv_api.v1 import route_data_pb2
from namesrv_api.v1.error_reason_pb2 import ErrorReason

from namesrv.core.errors import Reason
from namesrv.core.model import Doubt, RemovalReason
from namesrv.error_codes import ERROR_CODES
from namesrv.grpc_api.admin import AdminServicer, DiagnosticsCalls
from namesrv.grpc_api.registration import RegistrationServicer
from namesrv.grpc_api.route import RouteServicer
from namesrv.server.server import ADMIN_SERVICE, DIAGNOSTICS_SERVICE, REGISTRATION_SERVICE, ROUTE_SERVICE

PARTS: dict[ServiceDescriptor, Sequence[type]] = {
    REGISTRATION_SERVICE: (RegistrationServicer,),
    ROUTE_SERVICE: tuple(get_type_hints(RouteServicer).values()),
    ADMIN_SERVICE: (AdminServicer,),
    DIAGNOSTICS_SERVICE: (DiagnosticsCalls,),
}


def test_exactly_one_part_answers_each_call_of_the_contract() -> None:
    for service, parts in PARTS.items():
        public = [name for part in parts for name in vars(part) if name[0].isupper()]
        assert sorted(public) == sorted(call.name for call in service.methods)


def test_inline_calls_are_calls_of_their_part_and_no_streams() -> None:
    for service, parts in PARTS.items():
        for part in parts:
            for name in getattr(part, "inline_calls", ()):
                assert hasattr(part, name)
                assert not service.methods_by_name[name].server_streaming


def test_the_contract_and_the_table_have_the_same_reasons() -> None:
    contract = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()}  # noqa: SIM118 # not a mapping
    assert ERROR_CODES.keys() == set(Reason) == contract - {"UNSPECIFIED"}


def test_removal_reasons_have_the_numbers_of_the_contract() -> None:
    for reason in RemovalReason:
        assert route_data_pb2.RemovalReason.Value(f"REMOVAL_REASON_{reason.name}") == reason.value


def test_reasons_of_doubt_have_the_numbers_of_the_contract() -> None:
    reasons = {f"DOUBT_REASON_{why.name}": why.value for why in Doubt if not why.is_unconfirmed}
    assert reasons == dict(route_data_pb2.DoubtReason.items()[1:])
