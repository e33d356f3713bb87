"""Links that are cut, slowed and narrowed, by a proxy on loopback. Begin reading in ``network``."""
