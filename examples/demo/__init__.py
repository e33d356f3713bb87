"""The demo: the whole path on a real broker's topics."""
