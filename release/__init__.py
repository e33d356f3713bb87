"""Release tools: container images, wheels and the source distribution.

Begin reading in ``distribution``.
"""
