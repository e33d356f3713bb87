"""The rules for readers of changes that go on from a revision: the same for every call."""

from __future__ import annotations

from namesrv_api.v1 import route_service_pb2 as pb

from namesrv.core.errors import EpochChanged
from namesrv.core.registrations import RouteInfoManager
from namesrv.server.services.route import requests


def resume_revision(manager: RouteInfoManager, field: str, point: pb.ResumePoint) -> int:
    """The revision after which a reader wants the changes.

    Args:
        manager: Whose changes.
        field: Name of the field that has the point.
        point: Where to go on.

    Raises:
        InvalidField: A part of the point is missing or negative.
        EpochChanged: It is of another epoch.
        RevisionCompacted: The change log does not reach back to it, or has not reached it.
    """
    after = requests.resume_point(field, point)
    if after.epoch != manager.identity.epoch:
        raise EpochChanged(after.epoch, manager.identity.epoch)
    manager.change_log.check_reaches(after.revision)
    return after.revision
