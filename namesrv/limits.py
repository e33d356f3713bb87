"""Limits on input, each with the failure it prevents."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Largest request, except for RegisterBroker. One parsing step holds the interpreter for about 20 ms at this size."""

MAX_REGISTRATION_BYTES = 16 * 1024 * 1024
"""Largest request of RegisterBroker: 200,000 topics with names of 70 characters. It is parsed in pieces."""

MAX_METADATA_BYTES = 16 * 1024
"""Largest metadata of a request: name, value and 32 bytes for each entry. It is in memory before the call is known."""

SMALL_REQUEST_BYTES = 64 * 1024
"""Requests up to this size do not count as MAX_REQUEST_BYTES_UNDER_WAY, so lookups continue while registrations are
refused."""

MAX_REQUEST_BYTES_UNDER_WAY = 128 * 1024 * 1024
"""Most bytes of larger requests that run or wait. A parsed request takes the same amount again."""

MAX_CONCURRENT_STREAMS = 200
"""Most open calls of one connection: each takes 12 kB. More wait at the client."""

MAX_CONNECTIONS = 100_000
"""Most connections of both protocols; the file descriptors may allow fewer."""

MAX_CONNECTIONS_PER_SECOND = 2_000
"""Most new connections a second from one address; ten times as many in a burst. A whole fleet behind one address comes
back at once, and a flood leaves accepts to others."""

MAX_TOPICS_PER_REGISTRATION = 200_000
"""Most topics of one registration: they are committed in one step of the event loop."""

MAX_MAPPED_QUEUES = 100_000
"""Most queues in the mappings of all static topics of one registration: each takes some hundred bytes of memory,
and all of them are in routes."""

MAX_TOPICS_UNDER_WAY = 4_000_000
"""Most topics of all registrations that are read or wait. Each takes about 240 bytes."""

MAX_FILTER_SERVERS = 64
"""Most filter servers of one broker: each is in every route of its topics."""

MAX_LIVE_BROKERS = 50_000
"""Most live brokers: invented brokers must not fill memory."""

MAX_CHANNELS = 50_000
"""Most open channels, on both protocols. Each takes about 30 kB."""

MAX_CHANNEL_EVENTS = 64
"""Most unread events of one channel. Beyond it the channel ends."""

MAX_HOLDER_LENGTH = 200
"""Longest name that the holder of a channel gives itself."""

MAX_WAITING_WRITERS = 10_000
"""Most changes that wait for the table writer."""

MAX_SNAPSHOT_STREAMS = 256
"""Most snapshot streams at once: each may hold a copy of the topic table."""

MAX_WATCHERS = 20_000
"""Most open watches and followed snapshots. Each takes about 30 kB."""

MAX_WATCH_TOPICS = 10_000
"""Most topics of one watch by name. Clients with more topics use prefixes or a followed snapshot."""

MAX_WATCH_SECONDS = 3_600.0
"""Longest age of a watch; each has a random one from three quarters of it. Clients then choose a name server at
random, so watches spread over all of them after a restart."""

MAX_WATCH_PREFIXES = 32
"""Most prefixes of one watch: every changed topic is compared with all of them."""

MAX_WATCHED_NAMES = 1_000_000
"""Most topics and prefixes of all watches. Each takes up to 400 bytes."""

MAX_WAITING_TOPICS = 2_000_000
"""Most unsent topics of all watches. Each takes about 100 bytes. Beyond it, watches with many of them end, and beyond
twice as many all others. Clients resume from their last bookmark."""

DEFAULT_WATCHER_PAGE_SIZE = 100
"""Default number of watches in a page."""

MAX_WATCHER_PAGE_SIZE = 400
"""Most watches in a page: with the longest prefixes it stays below the 4 MiB that clients accept."""

MIN_HEARTBEAT_TIMEOUT_MILLIS = 1_000
"""Shortest timeout that a broker may request: shorter ones expire healthy brokers."""

MAX_HEARTBEAT_TIMEOUT_MILLIS = 3_600_000
"""Longest timeout that a broker may request."""

MAX_BATCH_TOPICS = 1_000
"""Most topics of one BatchGetTopicRoutes: they are looked up in one step of the event loop."""

MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Largest response of BatchGetTopicRoutes: gRPC clients accept no more by default."""

MAX_QUEUE_DATAS_PER_TOPIC = 1_000
"""Most groups in one RegisterTopic: the work grows with the square of their number."""

DEFAULT_PAGE_SIZE = 1_000
"""Default number of names in a page."""

MAX_PAGE_SIZE = 10_000
"""Most names in a page: with the longest names it stays below 4 MiB."""

MAX_KV_NAME_BYTES = 255
"""Longest namespace or key of the KV configuration, in UTF-8. Errors contain names, and HTTP/2 limits their size."""

MAX_KV_VALUE_BYTES = 64 * 1024
"""Largest value of the KV configuration, in UTF-8: a response can contain a whole namespace."""

MAX_KV_KEYS = 10_000
"""Most keys of the KV configuration: reading a namespace with so many blocks the event loop for 6 ms."""

MAX_KV_PAGE_SIZE = 2_000
"""Most entries of the KV configuration in a page: building it blocks the event loop for 4 ms."""

MAX_KV_BYTES = 2 * 1024 * 1024
"""Most bytes of all KV entries, each with its namespace. Every change writes all of them, and a response with all of
them stays below 4 MiB."""

MAX_WAITING_OPERATOR_CHANGES = 1_000
"""Most changes of intents, KV configuration and settings that wait for the disk."""

MAX_PRODUCT_ENV_NAMESRVS = 8
"""Most name servers of the product environment: they share the time of a lookup."""

MAX_PROXY_NETWORKS = 64
"""Most networks of load balancers: each new connection is compared with all of them."""

PRODUCT_ENV_TIMEOUT_SECONDS = 3.0
"""Time for a lookup at all name servers of the product environment (RocketMQ: mqClientApiTimeout)."""

MAX_PRODUCT_ENV_LOOKUPS = 100
"""Most lookups in the product environment at once: a name server that hangs must not collect them."""

MAX_PRODUCT_ENV_ANSWER_BYTES = MAX_BATCH_BYTES
"""Largest response of the product environment: a full batch."""

DEFAULT_AUDIT_PAGE_SIZE = 100
"""Default number of journal entries in a page."""

MAX_AUDIT_PAGE_SIZE = 500
"""Most journal entries in a page: with the longest summaries it stays below 4 MiB."""

MAX_JOURNAL_ENTRIES = 200_000
"""Most entries of the journal, whose oldest are removed first. The setting journal_max_bytes limits its bytes on
disk."""

MAX_MEMORY_JOURNAL_BYTES = 32 * 1024 * 1024
"""Most text of a journal without a data directory: as many changes as the change log has, at 300 bytes each."""

MAX_WAITING_JOURNAL_CHANGES = 10_000
"""Most changes that wait for the journal. Beyond it changes are left out, and an entry has their number."""

MAX_WAITING_JOURNAL_ROWS = 500_000
"""Most rows of these changes, each topic of a group counted: about 40 MB."""

MAX_WAITING_JOURNAL_READS = 100
"""Most calls that wait to read the journal. They run one after the other, each for up to 0.1 s."""

MAX_COMMENT_LENGTH = 500
"""Longest comment of an operator: intents, journal and log contain it."""

MAX_INTENTS = 5_000
"""Most intents in force: every change writes all of them, and encoding them holds the interpreter for 8 ms."""

MAX_ABSENT_INTENTS = 1_000
"""Most intents about groups that are not registered and topics that no broker reports: unknown names must not use up
MAX_INTENTS."""

DEFAULT_INTENT_PAGE_SIZE = 100
"""Default number of intents in a page."""

MAX_INTENT_PAGE_SIZE = 1_000
"""Most intents in a page: with the longest comments it stays below 4 MiB."""

DEFAULT_PIN_LEASE_MILLIS = 600_000
"""Default lease of a pinned snapshot: a Spark task starts and is retried within minutes."""

MIN_PIN_LEASE_MILLIS = 1_000
"""Shortest lease of a pinned snapshot."""

MAX_PIN_LEASE_MILLIS = 3_600_000
"""Longest lease of a pinned snapshot: an unused pin holds memory."""

MAX_GROUP_PAGE_SIZE = 2_000
"""Most groups in a page of GetBrokerClusterInfo: finding them blocks the event loop for a few milliseconds."""

GROUP_PAGE_BYTES = 1024 * 1024
"""Bytes after which a page of GetBrokerClusterInfo ends, far below 4 MiB."""

MAX_DIGEST_PAGE_SIZE = 2_000
"""Most brokers in a page of digests: encoding them blocks the event loop for about 1 ms."""

MAX_EXPLANATIONS = 1_000
"""Most groups in a response of ExplainTopicRoute: with the longest texts it stays below 4 MiB."""

MAX_LOOKUPS_UNDER_WAY = 10_000
"""Most unary calls of RouteService and DiagnosticsService in flight. Each class of calls has its own limit, so that a
flood of one class does not stop the others."""

MAX_REGISTRATIONS_UNDER_WAY = 12_000
"""Most unary calls of RegistrationService in flight: more than MAX_WAITING_WRITERS."""

MAX_ADMIN_CALLS_UNDER_WAY = 2_500
"""Most unary calls of AdminService in flight: more than MAX_WAITING_OPERATOR_CHANGES."""

MAX_STREAMS_UNDER_WAY = 75_000
"""Most streams of all services: more than all channels, watches and snapshot streams. Each takes about 30 kB."""

MAX_PROBES_UNDER_WAY = 25_000
"""Most health checks in flight: a client that watches health has a stream per connection."""

MAX_REFLECTIONS_UNDER_WAY = 200
"""Most calls of reflection in flight. Each takes about 50 kB."""

MAX_CALLS_UNDER_WAY = (
    MAX_LOOKUPS_UNDER_WAY + MAX_REGISTRATIONS_UNDER_WAY + MAX_ADMIN_CALLS_UNDER_WAY + MAX_STREAMS_UNDER_WAY
)
"""Sum of the limits for lookups, registrations, admin calls and streams. The engine enforces it before Python sees a
call."""

MAX_ANSWER_BYTES_WAITING = 128 * 1024 * 1024
"""Most bytes of responses that wait for readers. Beyond it, the connections that hold most are closed."""
