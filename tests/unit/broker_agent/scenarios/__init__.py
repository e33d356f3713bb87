"""RocketMQ's acceptance scenarios of the broker's side."""
