//! What /proc says of processes.

use std::fs;

/// Clock ticks per second; what Linux gives to user space on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds of processes so far, user and system, all threads.
pub fn cpu_seconds(pids: &[u32]) -> f64 {
    let ticks = pids.iter().map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The second field is a name in brackets and may have spaces.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        [11, 12]
            .iter()
            .filter_map(|at| fields.get(*at)?.parse::<f64>().ok())
            .sum::<f64>()
    });
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

/// Bytes of memory by a field of /proc/PID/status, all processes together.
pub fn memory_bytes(pids: &[u32], field: &str) -> u64 {
    let kibibytes = pids.iter().filter_map(|pid| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    kibibytes.sum::<u64>() * 1024
}
