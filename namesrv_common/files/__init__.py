"""Files: bounded reads, durable writes, checksums, and values that follow a file."""
