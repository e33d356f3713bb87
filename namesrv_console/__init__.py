"""A web page for people: the contents of the name servers, live, and where they differ.

Plain gRPC clients behind aiohttp; imports the groundwork only. Begin reading in ``web`` and ``fleet.observer``.
"""
