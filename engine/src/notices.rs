//! Things that an operator should read: each of a few peers is named, and in a flood a line stands for many.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::bridge::{Bridge, Event, Notice, locked};

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Lines that may come at once: each of a few peers is named.
const BURST: u32 = 20;

/// When the next line of one kind may be told.
#[derive(Debug)]
struct Pace {
    next: Instant,
    not_told: u64,
}

impl Pace {
    /// How many were suppressed before this one, or None if this one is suppressed, too.
    fn admit(&mut self, now: Instant, burst: u32) -> Option<u64> {
        if now + PAUSE * (burst - 1) < self.next {
            self.not_told += 1;
            return None;
        }
        self.next = self.next.max(now) + PAUSE;
        Some(std::mem::take(&mut self.not_told))
    }
}

/// Tells Python what it should log.
#[derive(Debug)]
pub(crate) struct Notices {
    bridge: Arc<Bridge>,
    paces: Mutex<HashMap<&'static str, Pace>>,
}

impl Notices {
    pub(crate) fn new(bridge: Arc<Bridge>) -> Self {
        Self { bridge, paces: Mutex::default() }
    }

    /// Tells what is wrong with a peer: each of a few is named, and in a flood a line in a while. Without a peer it concerns all,
    /// and comes once in a while.
    pub(crate) fn tell(&self, kind: &'static str, peer: &str, text: &str) {
        let (now, burst) = (Instant::now(), if peer.is_empty() { 1 } else { BURST });
        let mut paces = locked(&self.paces);
        let admitted = paces.entry(kind).or_insert(Pace { next: now, not_told: 0 }).admit(now, burst);
        drop(paces);
        if let Some(not_told) = admitted {
            self.bridge.tell(Event::Notice(Notice { kind, peer: peer.to_owned(), text: text.to_owned(), not_told }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_of_a_few_peers_has_a_line_and_a_line_stands_for_the_rest_of_a_flood() {
        let mut pace = Pace { next: Instant::now(), not_told: 0 };
        let told = |pace: &mut Pace| (0..100).filter_map(|_| pace.admit(Instant::now(), BURST)).collect::<Vec<_>>();
        assert_eq!(told(&mut pace), vec![0; 20]);
        tokio::time::advance(PAUSE).await;
        assert_eq!(told(&mut pace), [80], "those that were not told are in the next line");
        tokio::time::advance(PAUSE * BURST).await;
        assert_eq!(told(&mut pace).len(), 20, "after a pause, each of a few again");
    }
}
