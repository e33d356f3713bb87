"""Who calls, what he may do, and whether there is room for him: certificates, tokens, permits.

Begin reading in ``admission``.
"""
