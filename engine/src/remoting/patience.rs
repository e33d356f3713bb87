//! How long a connection may be silent, slow, or wait for memory.

use std::time::Duration;

use tokio::time::Instant;

/// Silence after which a connection is ended (`RocketMQ`: `serverChannelMaxIdleTimeSeconds`).
pub(crate) const IDLE: Duration = Duration::from_secs(120);

/// Time for a frame to arrive whole.
const FRAME: Duration = Duration::from_secs(30);

/// Time between two bytes of a frame.
const FRAME_SILENCE: Duration = Duration::from_secs(10);

/// Time to get memory for a request. `RocketMQ`'s brokers give up after 24 s.
const ROOM: Duration = Duration::from_secs(120);

/// What a connection waits for, and since when.
#[derive(Debug)]
pub(crate) struct Patience {
    /// How long its peer may take no answers.
    slow_reader: Duration,
    /// When bytes last arrived, or could arrive again.
    pub(crate) active_at: Instant,
    /// Since when a frame is on its way, without the time in which nothing was read.
    pub(crate) frame_since: Option<Instant>,
    /// Since when answers wait for the peer.
    pub(crate) unsent_since: Option<Instant>,
    /// Since when a request waits for memory.
    pub(crate) no_room_since: Option<Instant>,
    /// Whether requests are under way.
    pub(crate) is_busy: bool,
}

impl Patience {
    pub(crate) fn new(now: Instant, slow_reader: Duration) -> Self {
        Self { slow_reader, active_at: now, frame_since: None, unsent_since: None, no_room_since: None, is_busy: false }
    }

    /// The server does not read now. This time does not count for the peer.
    pub(crate) fn pause(&mut self, now: Instant) {
        self.active_at = now;
        self.frame_since = self.frame_since.map(|_| now);
    }

    /// When the connection is to be looked at again. Fails, in words, if it is to be ended.
    pub(crate) fn next(&self, now: Instant) -> Result<Instant, &'static str> {
        let until = |since: Instant, most: Duration, problem: &'static str| {
            if now > since + most { Err(problem) } else { Ok(since + most) }
        };
        if let Some(since) = self.unsent_since {
            return until(since, self.slow_reader, "it takes no answers");
        }
        if let Some(since) = self.no_room_since {
            return until(since, ROOM, "there was no memory for its requests");
        }
        if let Some(since) = self.frame_since {
            let whole = until(since, FRAME, "a frame did not arrive whole within 30 s")?;
            return Ok(whole.min(until(self.active_at, FRAME_SILENCE, "a frame stopped for 10 s")?));
        }
        if self.is_busy {
            return Ok(now + IDLE);
        }
        until(self.active_at, IDLE, "it was silent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_secs(20);
    const MOMENT: Duration = Duration::from_millis(1);

    /// How long a connection lasts that has waited since its begin.
    fn lasts(change: impl FnOnce(&mut Patience, Instant)) -> (Duration, &'static str) {
        let begin = Instant::now();
        let mut patience = Patience::new(begin, SLOW);
        change(&mut patience, begin);
        let mut now = begin;
        loop {
            match patience.next(now) {
                Ok(next) => now = next + MOMENT,
                Err(problem) => return (now - (begin + MOMENT), problem),
            }
        }
    }

    #[test]
    fn each_wait_has_its_time() {
        assert_eq!(lasts(|_, _| ()), (IDLE, "it was silent"));
        assert_eq!(lasts(|it, now| it.frame_since = Some(now)), (FRAME_SILENCE, "a frame stopped for 10 s"));
        assert_eq!(lasts(|it, now| it.unsent_since = Some(now)), (SLOW, "it takes no answers"));
        assert_eq!(lasts(|it, now| it.no_room_since = Some(now)), (ROOM, "there was no memory for its requests"));
    }

    #[test]
    fn a_frame_has_its_time_however_often_a_byte_comes() {
        let begin = Instant::now();
        let mut patience = Patience::new(begin, SLOW);
        patience.frame_since = Some(begin);
        patience.active_at = begin + FRAME;
        assert!(patience.next(begin + FRAME).is_ok());
        let problem = patience.next(begin + FRAME + MOMENT).expect_err("over");
        assert_eq!(problem, "a frame did not arrive whole within 30 s");
        patience.pause(begin + FRAME);
        assert!(patience.next(begin + FRAME + MOMENT).is_ok(), "a pause does not count");
    }

    #[test]
    fn a_peer_that_waits_for_answers_is_not_silent() {
        let begin = Instant::now();
        let mut patience = Patience::new(begin, SLOW);
        patience.is_busy = true;
        assert!(patience.next(begin + 10 * IDLE).is_ok());
    }
}
