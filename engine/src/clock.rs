//! A monotonic clock that tests can move forward.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The clock of everything that the engine counts per time. Timers of single connections and calls are tokio's.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// How far tests have moved it, nanoseconds.
    ahead: Arc<AtomicU64>,
}

impl Clock {
    /// The time now.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::now() + Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    /// Moves it forward, for all that share it.
    pub fn advance(&self, time: Duration) {
        self.ahead.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
