"""What crosses the wire in RocketMQ's protocol: frames, headers, their fields and codes, lenient JSON.

Pure functions over bytes; it imports nothing of the rest of ``remoting``. Begin reading in ``frames``.
"""
