//! The bounds of the engine, each with the failure that it prevents. Python gives them as a dict.

use std::time::Duration;

use crate::accept::proxy::Network;

/// Bounds that the settings of the name server give.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject), pyo3(from_item_all))]
pub struct Limits {
    /// Bytes that the cache of answers may take, what it needs for itself included.
    pub cache_bytes: usize,
    /// Largest metadata of a request as HTTP/2 counts it: name, value and 32 for each entry.
    pub max_metadata: usize,
    /// Calls open at once on one connection; a client keeps more to itself.
    pub max_streams: u32,
    /// Connections open at once; those above are closed at once.
    pub max_connections: usize,
    /// Calls at once that wait for their request or for Python; more are refused.
    pub max_calls: usize,
    /// The same of health, which is counted apart.
    pub max_health_calls: usize,
    /// The same of reflection, which is counted apart.
    pub max_reflection_calls: usize,
    /// Bytes of all requests together, metadata and messages, until Python has released them; more are refused.
    pub max_bytes_in: usize,
    /// Of every kind that is limited, what one address other than this machine's own may hold, percent.
    pub caller_percent: usize,
    /// Of every kind that is limited, what only programs of this machine may hold, percent.
    pub kept_percent: usize,
    /// Whether all programs of this machine are one caller without a share. Tests set it to false to have several callers.
    #[cfg_attr(feature = "python", pyo3(default = true))]
    pub trust_loopback: bool,
    /// Bytes of all answers together that wait for their readers. Over it, connections that hold most are closed.
    pub max_waiting: usize,
    /// Calls that the client cancels before they are answered, on one connection within one keepalive time.
    pub max_cancels: u32,
    /// New connections a second from one address; ten times as many may come in a burst.
    pub max_connection_rate: u32,
    /// A connection that is silent for so long is pinged.
    pub keepalive: Duration,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// How long TLS and the preface of HTTP/2 may take, each.
    pub handshake_timeout: Duration,
    /// How long a message may take from its first byte to its last.
    pub body_timeout: Duration,
    /// How long a client of `RocketMQ`'s protocol may take no answers.
    pub slow_reader: Duration,
    /// Networks of load balancers, whose connections of `RocketMQ`'s protocol begin with a preamble of the PROXY protocol.
    pub proxies: Vec<Network>,
    /// How long the last message of a stream that has ended may wait for its reader.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            max_metadata: 16 << 10,
            max_streams: 200,
            max_connections: 20_000,
            max_calls: 100_000,
            max_health_calls: 25_000,
            max_reflection_calls: 200,
            max_bytes_in: 128 << 20,
            caller_percent: 50,
            kept_percent: 20,
            trust_loopback: true,
            max_waiting: 128 << 20,
            max_cancels: 400,
            max_connection_rate: 2_000,
            keepalive: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(20),
            slow_reader: Duration::from_secs(30),
            proxies: Vec::new(),
            linger: Duration::from_secs(5),
        }
    }
}

impl Limits {
    /// What one address may hold of so much.
    pub(crate) fn of_address(&self, in_all: usize) -> usize {
        (in_all * self.caller_percent / 100).max(1)
    }
}
