//! The budget of a connection: how many frames of control it may send. `pace.rs` tells what it is for.

use std::time::Duration;

use tokio::time::Instant;

/// Frames of control a second, beyond those that are earned. Honest clients send a few for each call.
pub(crate) const RATE: u32 = 2_000;

/// Frames of control that may come at once.
pub(crate) const BURST: u32 = 4_000;

/// Frames of control that a call earns.
const PER_CALL: u32 = 4;

/// Bytes that are written for each frame of control that is earned: readers answer a few KiB with a `WINDOW_UPDATE`.
const BYTES_PER_FRAME: usize = 2 << 10;

/// The frames of control that a connection may send.
#[derive(Debug)]
pub(crate) struct Budget {
    left: f64,
    at: Instant,
    /// Calls that have come since.
    calls: u32,
    /// Bytes that have been written since.
    written: usize,
}

impl Budget {
    pub(crate) fn new(now: Instant) -> Self {
        Self { left: f64::from(BURST), at: now, calls: 0, written: 0 }
    }

    /// Frames of control have come.
    pub(crate) fn spend(&mut self, control: u32, now: Instant) {
        let earned = (now - self.at).as_secs_f64() * f64::from(RATE);
        let written = u32::try_from(self.written / BYTES_PER_FRAME).unwrap_or(u32::MAX);
        self.written %= BYTES_PER_FRAME;
        self.at = now;
        let more = earned + f64::from(written) + f64::from(std::mem::take(&mut self.calls)) * f64::from(PER_CALL);
        self.left = (self.left + more - f64::from(control)).min(f64::from(BURST));
    }

    /// How long to wait before anything more is read.
    pub(crate) fn debt(&self) -> Option<Duration> {
        (self.left < 0.0).then(|| Duration::from_secs_f64(-self.left / f64::from(RATE)))
    }

    /// Whether so many frames may come at once.
    pub(crate) fn has(&self, frames: u32) -> bool {
        self.left > f64::from(frames)
    }

    /// Calls have come.
    pub(crate) fn called(&mut self, calls: u32) {
        self.calls = self.calls.saturating_add(calls); // a client may send no frame of control for years
    }

    /// Bytes have been written.
    pub(crate) fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_years_without_a_frame_of_control_are_counted_without_overflow() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.called(u32::MAX);
        budget.called(2);
        budget.spend(2 * BURST, now);
        assert!(budget.debt().is_none(), "the calls earned more than that");
    }
}
