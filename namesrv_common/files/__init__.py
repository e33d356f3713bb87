"""Files: bounded reads, steps of durable writes, and values that follow a file."""
