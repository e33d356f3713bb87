"""This name server compared with others, on the same machine, with the same load: ``python -m bench.peers``."""
