"""Route snapshots into Spark."""
