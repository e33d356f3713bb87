//! What came of the calls.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{json, Value};

const LONGEST: Duration = Duration::from_secs(120);
const QUANTILES: [(&str, f64); 6] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99_9", 0.999),
    ("max", 1.0),
];
/// Points of a curve in each halving of the distance to 100 %.
const POINTS_PER_HALVING: u32 = 10;

/// The kind of error after which a connection takes no more calls.
pub const LOST: &str = "connection lost";

/// How one call ended: nothing, or the kind of its error.
pub struct Ended {
    pub error: Option<String>,
    /// Bytes of the answer's message, without headers.
    pub bytes: usize,
}

/// All calls of one kind.
pub struct Tally {
    latencies: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    bytes_sent: u64,
    bytes_received: u64,
}

impl Tally {
    pub fn new() -> Tally {
        let latencies = Histogram::new_with_bounds(1_000, LONGEST.as_nanos() as u64, 3);
        Tally {
            latencies: latencies.expect("the bounds are in order"),
            errors: BTreeMap::new(),
            bytes_sent: 0,
            bytes_received: 0,
        }
    }

    /// Takes one call in. The latency of a failed one counts too: a fast refusal must not look like a fast server,
    /// and the errors beside it say so.
    pub fn add(&mut self, latency: Duration, sent: usize, ended: Ended) {
        self.latencies.saturating_record(latency.as_nanos() as u64);
        self.bytes_sent += sent as u64;
        self.bytes_received += ended.bytes as u64;
        if let Some(error) = ended.error {
            *self.errors.entry(error).or_default() += 1;
        }
    }

    /// The kinds of errors and how often each came.
    pub fn errors(&self) -> Vec<String> {
        self.errors
            .iter()
            .map(|(error, count)| format!("{count} x {error}"))
            .collect()
    }

    pub fn merge(&mut self, other: &Tally) {
        self.latencies.add(&other.latencies).expect("both have the same bounds");
        for (error, count) in &other.errors {
            *self.errors.entry(error.clone()).or_default() += count;
        }
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }

    /// Latencies in milliseconds.
    pub fn to_json(&self) -> Value {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let mut latency: BTreeMap<&str, f64> = QUANTILES
            .iter()
            .map(|(name, quantile)| (*name, millis(self.latencies.value_at_quantile(*quantile))))
            .collect();
        latency.insert("mean", self.latencies.mean() / 1e6);
        let curve: Vec<(f64, f64)> = self
            .latencies
            .iter_quantiles(POINTS_PER_HALVING)
            .map(|point| (millis(point.value_iterated_to()), point.quantile()))
            .collect();
        json!({
            "calls": self.latencies.len(),
            "errors": self.errors,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "latency_ms": latency,
            "latency_curve": curve,
        })
    }
}
