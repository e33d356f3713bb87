"""Limits of RocketMQ's protocol, each with the failure it prevents. ``namesrv.limits`` has those of every protocol."""

from __future__ import annotations

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest frame, the four bytes of its length included (RocketMQ: NettyEncoder's FRAME_MAX_LENGTH)."""

MAX_HEADER_BYTES = 512 * 1024
"""Largest header: it carries the largest value of the KV configuration, with every character escaped."""

MAX_NESTED_HEADER_BYTES = 16 * 1024
"""Largest JSON header that may have lists, or more objects than its fields. RocketMQ writes none, and they take many
times as long as texts."""

MAX_DATA_VERSION_BYTES = 1_024
"""Largest body of a QUERY_DATA_VERSION, which is read in one step. Honest ones have a hundred bytes."""

MAX_FIELDS = 1_000
"""Most fields of a header: honest ones have a dozen."""

MAX_LENIENT_TOKENS = 50_000
"""Most keys and values in one value that standard JSON refuses, such as the details of one static topic: a twentieth of
a second. The queues of its mapping are read in steps, and have a limit of their own."""

MAX_VALUE_CHARACTERS = 512 * 1024
"""Longest value of a body that becomes objects at once: these take up to eighty times its memory. A topic's route of a
thousand groups has half of it. Tables and mappings are longer, and are read member by member."""

MAX_DEPTH = 32
"""Deepest nesting in such a value."""

MAX_MEMBERS = 500_000
"""Most members of a JSON body that are read one by one: 200,000 topics, as many mappings, and their queues where they
are written in another form than RocketMQ's."""

MAX_INFLATED_BYTES = 40 * 1024 * 1024
"""Largest body after it was unpacked. A table of 200,000 topics has 32 MB with the longest names."""

MAX_PART_BYTES = 2 * 1024 * 1024
"""Largest part of a compressed body. The mapping of a topic of 65,535 queues has 1 MB."""

MAX_WAITING_REQUESTS = 32
"""Most requests of one connection that wait for the one before them. Beyond it nothing more is read from it."""

MAX_UNSENT_BYTES = 1024 * 1024
"""Bytes on their way to a peer from which on nothing more is read from it or answered. One answer may exceed it."""

FREE_BYTES = 16 * 1024
"""Bytes of requests that each connection may hold without a share: lookups continue while registrations wait."""

MEMORY_SECONDS = 120.0
"""Time to get memory for a request. RocketMQ's brokers give up after 24 s."""

FRAME_SECONDS = 30.0
"""Time for a frame to arrive whole."""

FRAME_SILENCE_SECONDS = 10.0
"""Time between two bytes of a frame."""

IDLE_SECONDS = 120.0
"""Silence after which a connection is ended (RocketMQ: serverChannelMaxIdleTimeSeconds)."""

HANDSHAKE_SECONDS = 10.0
"""Time for TLS to agree."""

MAX_HANDSHAKES = 16
"""Most TLS handshakes of one address at once: their steps may all be due in one iteration of the event loop."""

MAX_PIECES = 200_000
"""Most pieces that are kept: each is about 300 bytes."""

MAX_REMARK_CHARACTERS = 1_000
"""Longest text about a refused request: it may repeat a part of it."""

MAX_CONNECTIONS = 20_000
"""Most connections of RocketMQ's protocol: each takes a file descriptor and about 10 kB."""

MAX_ALL_UNSENT_BYTES = 256 * 1024 * 1024
"""Most bytes on their way to all peers of RocketMQ's protocol together: a list of all topics has up to 25 MB, and
asking for it costs nothing. Beyond it connections end, first the largest of the address that has most."""
