"""The fleet that faults are done to: name servers, agents, clients, operators and the pipeline, each a process.

Begin reading in ``fleet``.
"""
