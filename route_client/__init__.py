"""Routes for producers and consumers."""
