"""Limits on input, each with the failure it prevents."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest request. Parsing is one call that holds the interpreter: 4 MiB take about 20 ms."""

MAX_TOPICS_PER_REGISTRATION = 200_000
"""Most topics of one registration, all parts together: publishing them is one step of the event loop."""

MAX_REGISTRATION_PARTS = 64
"""Most parts of one registration. With the largest message, 256 MiB."""

MAX_STAGED_BYTES = 256 * 1024 * 1024
"""Most bytes of registrations that wait for their last part, of all channels together."""

STAGED_PART_SECONDS = 30.0
"""How long parts wait for the next one."""

MAX_FILTER_SERVERS = 64
"""Most filter servers of one broker: they travel in every route of its topics."""

MAX_LIVE_BROKERS = 50_000
"""Most live brokers: a flood of made-up brokers must not fill memory."""

MAX_CHANNELS = 50_000
"""Most open channels; each costs a task and a queue, about 30 kB."""

MAX_CHANNEL_EVENTS = 64
"""Most events that wait for the reader of one channel. One that falls further behind is cut."""

MAX_HOLDER_LENGTH = 200
"""Longest text by which a channel's holder calls itself."""

MAX_WAITING_WRITERS = 10_000
"""Most calls that wait for their turn to change the tables."""

MAX_SNAPSHOT_STREAMS = 256
"""Most snapshots streamed at once: each may hold a copy of the topic table."""

MIN_HEARTBEAT_TIMEOUT_MILLIS = 1_000
"""Shortest time a broker may ask to be given: shorter ones expire healthy brokers."""

MAX_HEARTBEAT_TIMEOUT_MILLIS = 3_600_000
"""Longest time a broker may ask to be given."""

DEFAULT_PAGE_SIZE = 1_000
"""Names in a page if the caller does not say."""

MAX_PAGE_SIZE = 10_000
"""Most names in a page: with the longest names a page stays below 4 MiB."""
