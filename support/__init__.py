"""What tests, benchmarks, the demo and the tools share: programs started as processes, fleets, certificates, checks.

Imports the programs and nothing of tests, bench or demo. Begin reading in ``processes``.
"""
