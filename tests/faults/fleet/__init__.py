"""The fleet that faults are done to: name servers, agents, clients and operators, each a process.

Begin reading in ``fleet``.
"""
