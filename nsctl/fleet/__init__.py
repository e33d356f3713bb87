"""Which name servers and agents a command is about, and how they are asked: one after the other, or all at once.

Knows nothing of commands and of what they show; ``session`` and commands import it. Begin reading in ``name_servers``.
"""
