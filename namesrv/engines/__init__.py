"""The engine, which carries calls to handlers and answers back: native, in Rust. Another one serves for development.

Begin reading in ``api``.
"""
