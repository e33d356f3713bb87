"""The name server's settings: what they are, what they are called on the wire, and the limits on all input.

Imports only the pure core. Begin reading in ``settings``.
"""
