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

MAX_BATCH_TOPICS = 1_000
"""Most topics of one BatchGetTopicRoutes: its look-ups are of one revision, so they are one step of the event loop."""

MAX_BATCH_ROUTES_BYTES = 4 * 1024 * 1024
"""Most bytes of routes in one answer: topics on very many groups would fill memory, and no client takes more anyhow
unless it is told to."""

MAX_QUEUE_DATAS_PER_TOPIC = 1_000
"""Most groups in one RegisterTopic: giving a topic its nth group copies the n before it."""

DEFAULT_PAGE_SIZE = 1_000
"""Names in a page if the caller does not say."""

MAX_PAGE_SIZE = 10_000
"""Most names in a page: with the longest names a page stays below 4 MiB."""

MAX_KV_NAME_BYTES = 255
"""Longest namespace or key of the KV configuration, in UTF-8. Names travel in errors, whose size HTTP/2 bounds."""

MAX_KV_VALUE_BYTES = 64 * 1024
"""Largest value of the KV configuration, in UTF-8: the values of a namespace travel together."""

MAX_KV_KEYS = 10_000
"""Most keys of the KV configuration: an answer to a registration carries a whole namespace, and making one of so many
keys holds up the event loop for 6 ms."""

MAX_KV_PAGE_SIZE = 2_000
"""Most entries of the KV configuration in a page: making one holds up the event loop for 4 ms."""

MAX_KV_BYTES = 2 * 1024 * 1024
"""Most bytes of all entries together, the namespace counted with each: every change writes all of them to disk, and
a list or an answer to a registration stays below the 4 MiB that clients take."""

MAX_WAITING_KV_CHANGES = 1_000
"""Most calls that wait until the disk has taken the changes before them."""
