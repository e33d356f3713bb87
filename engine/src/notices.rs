//! Things that an operator should read, a line for each kind at a time, however often they happen.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bridge::{Bridge, Event};

/// Between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

/// Tells Python what it should log.
#[derive(Debug)]
pub(crate) struct Notices {
    bridge: Arc<Bridge>,
    told: Mutex<HashMap<&'static str, (Instant, u64)>>,
}

impl Notices {
    pub(crate) fn new(bridge: Arc<Bridge>) -> Self {
        Self { bridge, told: Mutex::default() }
    }

    /// Tells something about a peer, unless the same kind was told of just before.
    pub(crate) fn tell(&self, kind: &'static str, peer: &str, text: &str) {
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let not_told = match told.get_mut(kind) {
            Some((at, not_told)) if now.duration_since(*at) < PAUSE => {
                *not_told += 1;
                return;
            }
            Some((_, not_told)) => *not_told,
            None => 0,
        };
        told.insert(kind, (now, 0));
        drop(told);
        let text =
            if not_told == 0 { text.to_owned() } else { format!("{text} ({not_told} more since the last line)") };
        self.bridge.tell(Event::Notice(kind, peer.to_owned(), text));
    }
}
