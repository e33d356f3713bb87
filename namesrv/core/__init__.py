"""The route tables: pure state, with an injected clock."""
