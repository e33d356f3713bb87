//! Counts and latencies of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{json, Value};

const LONGEST: Duration = Duration::from_secs(120);

/// The kind of error after which a connection takes no more calls.
pub const LOST: &str = "connection lost";

/// The error of a call, if it has one.
pub type Ended = Option<String>;

/// All calls of one kind.
pub struct Tally {
    latencies: Histogram<u64>,
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    pub fn new() -> Tally {
        let latencies = Histogram::new_with_bounds(1_000, LONGEST.as_nanos() as u64, 3);
        Tally {
            latencies: latencies.expect("the bounds are in order"),
            errors: BTreeMap::new(),
        }
    }

    /// Takes one call in. The latency of a failed one counts too: a fast refusal must not look like a fast server,
    /// and the errors next to it show so.
    pub fn add(&mut self, latency: Duration, error: Ended) {
        self.latencies.saturating_record(latency.as_nanos() as u64);
        if let Some(error) = error {
            *self.errors.entry(error).or_default() += 1;
        }
    }

    pub fn to_json(&self) -> Value {
        let p99_ms = self.latencies.value_at_quantile(0.99) as f64 / 1e6;
        json!({"calls": self.latencies.len(), "errors": self.errors, "p99_ms": p99_ms})
    }
}
