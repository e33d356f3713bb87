"""Limits of what RocketMQ's requests say, each with the failure it prevents.

``namesrv.limits`` has those of both protocols. The engine (``engine/src/remoting``) limits connections and frames.
"""

from __future__ import annotations

MAX_NESTED_HEADER_BYTES = 16 * 1024
"""Largest JSON header that may have lists, or more objects than its fields. RocketMQ writes none, and they take many
times as long as texts."""

MAX_DATA_VERSION_BYTES = 1_024
"""Largest body of a QUERY_DATA_VERSION, which is read in one step. Honest ones have a hundred bytes."""

MAX_FIELDS = 1_000
"""Most fields of a header: honest ones have a dozen."""

MAX_VALUE_CHARACTERS = 512 * 1024
"""Longest value of a body that becomes objects at once: these take up to eighty times its memory. A topic's route of a
thousand groups has half of it. Tables and mappings are longer, and are read member by member."""

MAX_DEPTH = 32
"""Deepest nesting of a value that has keys without quotes."""

MAX_MEMBERS = 500_000
"""Most members of a JSON body that are read one by one: 200,000 topics, as many mappings, and their queues where they
are written in another form than RocketMQ's."""

MAX_INFLATED_BYTES = 40 * 1024 * 1024
"""Largest body after it was unpacked. A table of 200,000 topics has 32 MB with the longest names."""

MAX_PART_BYTES = 2 * 1024 * 1024
"""Largest part of a compressed body. The mapping of a topic of 65,535 queues has 1 MB."""

MAX_ROWS = 200_000
"""Most rows of queues that are kept as JSON, and most of groups: each takes about 400 bytes."""

MAX_REMARK_CHARACTERS = 1_000
"""Longest text about a refused request: it may repeat a part of it."""
