"""One name server as the agent sees it: its channel, the calls to it, and what it holds of the broker.

Imports ``broker``. Begin reading in ``namesrv_target``.
"""
