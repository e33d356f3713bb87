"""Both container images: built with what the machine has, or from local files only.

Begin reading in ``images``.
"""
