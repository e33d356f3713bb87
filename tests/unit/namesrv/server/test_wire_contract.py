"""The server and the wire contract fit together."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.descriptor import ServiceDescriptor
from namesrv_api.v1 import route_data_pb2

from groundwork.rpc_handlers import Composition, part_classes
from namesrv.core import errors
from namesrv.core.model import RemovalReason
from namesrv.error_codes import CODES
from namesrv.grpc_api.admin import AdminChanges, AdminQueries
from namesrv.grpc_api.registration import RegistrationServicer
from namesrv.grpc_api.route import RouteServicer
from namesrv.server.listener import SERVICES

REGISTRATION, ROUTE, ADMIN = SERVICES


PARTS: dict[ServiceDescriptor, Sequence[type]] = {
    REGISTRATION: (RegistrationServicer,),
    ROUTE: part_classes(RouteServicer),
    ADMIN: (*part_classes(AdminQueries), *part_classes(AdminChanges)),
}


def test_every_call_is_there() -> None:
    for service, parts in PARTS.items():
        assert set(Composition.of(service.methods, parts).behaviours) == {call.name for call in service.methods}


def test_parts_have_no_call_that_the_contract_lacks() -> None:
    for service, parts in PARTS.items():
        public = [name for part in parts for name in vars(part) if name[0].isupper()]
        assert sorted(public) == sorted(call.name for call in service.methods)


def test_every_error_has_a_code_and_a_reason_of_its_own() -> None:
    kinds = {getattr(errors, name) for name in errors.__all__}
    assert set(CODES) == kinds - {errors.CallRefused}
    reasons = [reason for _, reason in CODES.values()]
    assert len(set(reasons)) == len(reasons)


def test_removal_reasons_have_the_numbers_of_the_contract() -> None:
    for reason in RemovalReason:
        assert route_data_pb2.RemovalReason.Value(f"REMOVAL_REASON_{reason.name}") == reason.value
