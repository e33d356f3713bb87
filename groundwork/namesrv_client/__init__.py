"""The one client of name servers and agents that every program of ours calls them with.

Calls by their name in the contract, deadlines, pages and streams; what fails is a ``CallError``. Begin reading in
``blocking``; ``aio`` is the same for an event loop, and ``connection`` what both stand on.
"""
