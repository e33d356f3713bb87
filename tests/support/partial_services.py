"""Servers of tests that have only some calls of a service of the name server."""

from __future__ import annotations

from google.protobuf.descriptor import ServiceDescriptor

from groundwork.rpc_handlers import methods_of
from namesrv.grpc_api.handlers import unimplemented


def whole(service: ServiceDescriptor, *parts: object) -> tuple[object, ...]:
    """Parts and what a service needs besides: its other calls answer that they are not there yet."""
    there = methods_of(service, parts)
    return (*parts, unimplemented(method for method in service.methods if method not in there))
