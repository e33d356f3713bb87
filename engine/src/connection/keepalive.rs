//! Keepalive: pings a silent peer, and gives it up if it sends nothing in answer.
//!
//! A peer is silent when nothing has been read from it for the keepalive time. It is dead when it stays silent for the
//! keepalive timeout after a ping. So a dead peer is noticed at most both times after its last byte.

use std::time::Duration;

use tokio::time::Instant;

/// Time for one more look at the socket before a peer counts as dead. A timer that is overdue because the process was
/// stopped fires before the runtime knows what has come.
const LAST_LOOK: Duration = Duration::from_millis(10);

/// What to do now that the timer has fired.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// The peer has sent something, or may have: look again at this time.
    Wait(Instant),
    /// The peer is silent: ping it, and look again at this time.
    Ping(Instant),
    /// The peer is dead: close the connection.
    Close,
}

/// The keepalive of one connection.
#[derive(Debug)]
pub(crate) struct Keepalive {
    after: Duration,
    timeout: Duration,
    pinged_at: Option<Instant>,
    /// Whether this is the last look.
    looks_again: bool,
}

impl Keepalive {
    /// Creates the keepalive of a new connection.
    pub(crate) fn new(after: Duration, timeout: Duration) -> Self {
        Self { after, timeout, pinged_at: None, looks_again: false }
    }

    /// Decides what to do, given the time of the last read. If bytes were withheld from reading, an answer may be among them,
    /// so the peer is not dead yet.
    pub(crate) fn next(&mut self, now: Instant, read_at: Instant, withheld: bool) -> Next {
        if self.pinged_at.is_some_and(|pinged_at| read_at < pinged_at) {
            return if withheld {
                Next::Wait(now + self.timeout)
            } else if std::mem::replace(&mut self.looks_again, true) {
                Next::Close
            } else {
                Next::Wait(now + LAST_LOOK)
            };
        }
        self.looks_again = false;
        self.pinged_at = None;
        let silent_at = read_at + self.after;
        if now < silent_at {
            return Next::Wait(silent_at);
        }
        self.pinged_at = Some(now);
        Next::Ping(now + self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(5);
    const TIMEOUT: Duration = Duration::from_secs(3);

    /// The keepalive of a peer that was pinged, the time of the ping, and the time at which its answer is due.
    fn pinged() -> (Keepalive, Instant, Instant) {
        let (mut keepalive, read_at) = (Keepalive::new(AFTER, TIMEOUT), Instant::now());
        let (now, due) = (read_at + AFTER, read_at + AFTER + TIMEOUT);
        assert_eq!(keepalive.next(now - TIMEOUT, read_at, false), Next::Wait(now));
        assert_eq!(keepalive.next(now, read_at, false), Next::Ping(due));
        (keepalive, now, due)
    }

    #[test]
    fn a_peer_that_falls_silent_is_closed_after_both_times() {
        let (mut keepalive, pinged, due) = pinged();
        assert_eq!(keepalive.next(due, pinged - AFTER, false), Next::Wait(due + LAST_LOOK));
        assert_eq!(keepalive.next(due + LAST_LOOK, pinged - AFTER, false), Next::Close);
    }

    #[test]
    fn a_peer_that_answers_the_ping_stays_even_if_it_does_in_the_same_instant() {
        for after in [Duration::ZERO, Duration::from_millis(1)] {
            let (mut keepalive, pinged, due) = pinged();
            assert_eq!(keepalive.next(due, pinged + after, false), Next::Wait(pinged + after + AFTER));
        }
    }

    #[test]
    fn a_peer_whose_answer_we_have_not_read_is_given_time() {
        let (mut keepalive, pinged, due) = pinged();
        assert_eq!(keepalive.next(due, pinged - AFTER, true), Next::Wait(due + TIMEOUT));
        let due = due + TIMEOUT;
        assert_eq!(keepalive.next(due, pinged - AFTER, false), Next::Wait(due + LAST_LOOK), "nothing was left unread");
    }

    #[test]
    fn an_answer_that_is_seen_at_the_last_look_counts() {
        let (mut keepalive, pinged, due) = pinged();
        assert_eq!(keepalive.next(due, pinged - AFTER, false), Next::Wait(due + LAST_LOOK));
        let seen = due + LAST_LOOK;
        assert_eq!(keepalive.next(seen, seen, false), Next::Wait(seen + AFTER));
    }
}
