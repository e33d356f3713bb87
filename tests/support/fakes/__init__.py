"""Stand-ins for what is on the other side: name servers, brokers, clients, disks and clocks.

Begin reading in ``scripted_namesrv``.
"""
