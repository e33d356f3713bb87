"""This name server beside others, on the same machine, with the same load: ``python -m bench.peers``."""
