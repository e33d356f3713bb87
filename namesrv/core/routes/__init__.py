"""The routes and every change of them (RocketMQ: RouteInfoManager).

Registrations, removals, operators' changes, lookups, and the change log. Imports tables, liveness and snapshots.
Begin reading in ``route_info_manager``.
"""
