"""The server and the wire contract fit together."""

from __future__ import annotations

from namesrv_api.v1 import route_data_pb2

from namesrv.core import errors
from namesrv.core.records.rows import RemovalReason
from namesrv.server.listener import SERVICES
from namesrv.server.rpc.handlers import unimplemented
from namesrv.server.rpc.status import CODES
from namesrv.server.services.admin.servicer import AdminServicer
from namesrv.server.services.registration.servicer import RegistrationServicer
from namesrv.server.services.route.servicer import RouteServicer

REGISTRATION, ROUTE, ADMIN = SERVICES


def test_every_call_is_there() -> None:
    for service, servicer in ((REGISTRATION, RegistrationServicer), (ROUTE, RouteServicer), (ADMIN, AdminServicer)):
        assert unimplemented(service, servicer) == frozenset()


def test_servicers_have_no_call_that_the_contract_lacks() -> None:
    for service, servicer in ((REGISTRATION, RegistrationServicer), (ROUTE, RouteServicer), (ADMIN, AdminServicer)):
        public = {name for name in vars(servicer) if name[0].isupper()}
        assert public <= {call.name for call in service.methods}


def test_every_error_has_a_code_and_a_reason_of_its_own() -> None:
    kinds = {getattr(errors, name) for name in errors.__all__}
    assert set(CODES) == kinds - {errors.CallRefused}
    reasons = [reason for _, reason in CODES.values()]
    assert len(set(reasons)) == len(reasons)


def test_removal_reasons_have_the_numbers_of_the_contract() -> None:
    for reason in RemovalReason:
        assert route_data_pb2.RemovalReason.Value(f"REMOVAL_REASON_{reason.name}") == reason.value
