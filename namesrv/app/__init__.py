"""The application layer: what a call means on either protocol, with its waiting, permits, quotas and watches.

Begin reading in ``writer``, then ``access``.
"""
