"""What crosses the wire in RocketMQ's protocol: frames, headers, their fields and codes, lenient JSON.

Pure functions over bytes; it imports nothing of this front. Begin reading in ``frames``.
"""
