"""AdminService: what operators call.

Begin reading in ``servicer``.
"""
