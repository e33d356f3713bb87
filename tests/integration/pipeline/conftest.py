"""Fixtures of places for a log."""

from __future__ import annotations

from tests.support.log_places import bucket, place, proxy, s3_server

__all__ = ["bucket", "place", "proxy", "s3_server"]  # pytest finds fixtures by their names in this module
