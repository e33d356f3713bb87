"""What makes a program of the rest: options, settings, logs, signals, threads, and its end."""
