//! How fast one address may open connections.

use std::hash::{BuildHasher, RandomState};

use tokio::time::Instant;

/// Addresses that are kept apart; those that share a place share its rate.
const PLACES: usize = 1 << 14;

/// A burst is what this many seconds allow: a fleet behind one address may come back at once.
const BURST_SECONDS: u32 = 10;

/// Places of addresses under a secret hash, each with what it has left.
#[derive(Debug)]
pub(crate) struct Rates {
    a_second: u32,
    secret: RandomState,
    begun: Instant,
    /// What is left at which time, seconds after the begin. A place that was never used has everything.
    left: Box<[(f32, f32)]>,
}

impl Rates {
    pub(crate) fn new(a_second: u32) -> Self {
        Self { a_second, secret: RandomState::new(), begun: Instant::now(), left: vec![(f32::NAN, 0.0); PLACES].into() }
    }

    /// Whether another connection from a site may come now.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // a rate needs no more digits
    pub(crate) fn admit(&mut self, site: u64) -> bool {
        let now = self.begun.elapsed().as_secs_f64();
        let most = (self.a_second * BURST_SECONDS) as f32;
        let place = &mut self.left[(self.secret.hash_one(site) as usize) % PLACES];
        let left =
            if place.0.is_nan() { most } else { place.0 + (now - f64::from(place.1)) as f32 * self.a_second as f32 };
        let left = left.min(most);
        let admitted = left >= 1.0;
        *place = (if admitted { left - 1.0 } else { left }, now as f32);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_ten_seconds_may_come_and_then_the_rate() {
        let mut rates = Rates::new(5);
        assert_eq!((0..80).filter(|_| rates.admit(1)).count(), 50);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((0..80).filter(|_| rates.admit(1)).count(), 10);
        assert!(rates.admit(2), "another address has its own");
    }
}
