//! The times at which calls are due, kept by a thread: an event loop's own timers have whole milliseconds.

use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

/// Times that have passed and not been taken yet; behind them the thread waits.
const AHEAD: usize = 65_536;

/// Evenly spaced times from now on, each as soon as it has come. The thread ends with the receiver.
pub fn due_times(rate: f64) -> mpsc::Receiver<Instant> {
    let (tell, told) = mpsc::channel(AHEAD);
    thread::spawn(move || {
        let begin = Instant::now();
        for number in 0u64.. {
            let due = begin + Duration::from_secs_f64(number as f64 / rate);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if tell.blocking_send(due).is_err() {
                return;
            }
        }
    });
    told
}
