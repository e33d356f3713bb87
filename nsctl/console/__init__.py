"""The web page for people: the contents of the name servers, live, and where they differ.

A plain gRPC client behind aiohttp, which needs the extra ``console``; imports the groundwork only, and no
command. Begin reading in ``web`` and ``observer``.
"""
