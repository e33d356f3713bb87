"""What the name server gives to ``groundwork.grpc_handlers``: the table of errors, the bound on memory, admission.

Imports auth. Begin reading in ``handlers``.
"""
