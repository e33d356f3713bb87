"""The application layer: what a call means on either protocol, with its permits, quotas, waiting and watches.

Begin reading in ``writer``, then ``access``.
"""
