"""The log as commits on a store: what they say, what they add up to, who may make the next.

Knows nothing of Spark. Begin reading in ``route_log``.
"""
