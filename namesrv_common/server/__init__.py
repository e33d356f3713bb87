"""What programs that answer calls share: handlers, limits, permits, health, metrics and traces."""
