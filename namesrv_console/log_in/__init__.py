"""Who asks: tokens, people with roles and passwords, a proxy that names them.

Imports ``listener.protection`` of the console, for refusals. Begin reading in ``log_in``.
"""
