//! How often one address may do something.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// Addresses that are counted separately. Addresses with the same hash share a rate.
const PLACES: usize = 1 << 14;

/// The rates of all addresses, by a secret hash.
///
/// Each time takes up one interval of its rate. A rate may be taken up for the burst ahead of now. The times
/// are whole nanoseconds since the start, which 64 bits hold for 584 years.
#[derive(Debug)]
pub(crate) struct Rates {
    /// Nanoseconds that are taken up at once.
    interval: u64,
    /// Nanoseconds that may be taken up ahead of now.
    burst: u64,
    secret: RandomState,
    started: Instant,
    /// Until when each rate is taken up.
    taken_until: Box<[u64]>,
}

impl Rates {
    /// So often a second, and after a pause at once as often as the burst allows.
    pub(crate) fn new(a_second: u32, burst: Duration, now: Instant) -> Self {
        Self {
            burst: nanos(burst),
            interval: nanos(Duration::from_secs(1)) / u64::from(a_second.max(1)),
            secret: RandomState::new(),
            started: now,
            taken_until: vec![0; PLACES].into(),
        }
    }

    /// Whether a site may do it once more now.
    pub(crate) fn admit(&mut self, site: u64, now: Instant) -> bool {
        let now = nanos(now.saturating_duration_since(self.started));
        let place = usize::try_from(self.secret.hash_one(site) % PLACES as u64).unwrap_or_default();
        let taken_until = &mut self.taken_until[place];
        let next = now.max(*taken_until) + self.interval;
        let admitted = next - now <= self.burst;
        if admitted {
            *taken_until = next;
        }
        admitted
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(rates: &mut Rates, site: u64, now: Instant) -> usize {
        (0..80).filter(|_| rates.admit(site, now)).count()
    }

    #[test]
    fn the_rate_is_the_same_after_years_of_uptime() {
        let started = Instant::now();
        for days in [7, 30, 3_650] {
            let mut rates = Rates::new(5, Duration::from_secs(10), started);
            let mut now = started + Duration::from_secs(86_400 * days);
            assert_eq!(admitted(&mut rates, 1, now), 50, "after {days} days");
            assert!(rates.admit(2, now), "another address has a rate of its own");
            for _ in 0..1_000 {
                now += Duration::from_millis(200);
                assert_eq!(admitted(&mut rates, 1, now), 1, "after {days} days");
            }
        }
    }
}
