"""The engines, which carry calls to handlers and answers back: native (Rust) and grpcio.

Begin reading in ``api``.
"""
