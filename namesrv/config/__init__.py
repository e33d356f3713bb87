"""The name server's settings, their names on the wire, and the limits on all input.

Imports only the pure core. Begin reading in ``settings``.
"""
