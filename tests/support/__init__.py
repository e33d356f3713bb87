"""Support for tests, benchmarks, the demo and the tools: processes, fleets, certificates, checks.

Imports the programs and nothing of tests, bench or demo. Begin reading in ``programs.processes``.
"""
