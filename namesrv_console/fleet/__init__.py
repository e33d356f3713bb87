"""Name servers that are asked again and again, and what each of them said.

Imports nothing else of the console. Begin reading in ``observer``.
"""
