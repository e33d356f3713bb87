"""How a call reaches a servicer: parsing, memory, errors, slow readers, calls without a task.

Imports auth. Begin reading in ``handlers``.
"""
