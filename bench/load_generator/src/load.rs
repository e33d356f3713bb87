//! Runs a plan: connections of groups, each with calls of its script.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{json, Map, Value};
use tokio::sync::{mpsc, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout_at};

use crate::connection::Connection;
use crate::outcome::{Tally, LOST};
use crate::plan::{Group, Plan};
use crate::script::Script;

/// How long answers are waited for after the end.
const DRAIN: Duration = Duration::from_secs(15);
const LONGEST_FILL: Duration = Duration::from_secs(300);
/// Due times that have passed and not been taken yet.
const AHEAD: usize = 65_536;
/// Clock ticks per second; what Linux gives to user space on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Runs the plan; returns the outcome.
pub async fn run(plan: Plan) -> io::Result<Value> {
    let began = Instant::now();
    let filling = Work::open(&plan, &plan.fill, true).await?;
    Rc::clone(&filling).run(began, began + LONGEST_FILL).await;
    let failed: Vec<String> = filling.tallies.borrow().iter().flat_map(errors).collect();
    if !failed.is_empty() {
        return Err(io::Error::other(format!("filling: {}", failed.join(", "))));
    }
    let mut works = Vec::new();
    for group in &plan.groups {
        works.push(Work::open(&plan, group, false).await?);
    }
    let start = Instant::now() + Duration::from_secs_f64(plan.warm_up_seconds);
    let end = start + Duration::from_secs_f64(plan.seconds);
    let mut running = JoinSet::new();
    for work in &works {
        running.spawn_local(Rc::clone(work).run(start, end));
    }
    sleep_until(start.into()).await;
    let before = cpu_seconds(plan.server_pid);
    sleep_until(end.into()).await;
    let spent = cpu_seconds(plan.server_pid) - before;
    while running.join_next().await.is_some() {}
    let groups: Map<String, Value> = works.iter().map(|work| (work.name.clone(), work.to_json())).collect();
    Ok(json!({"server_cpu_seconds": spent, "groups": groups}))
}

fn errors(tally: &Tally) -> Vec<String> {
    let kinds = tally.errors.iter();
    kinds.map(|(error, count)| format!("{count} x {error}")).collect()
}

/// A group, its connections and the outcome of its calls.
struct Work {
    name: String,
    script: Script,
    in_flight: usize,
    rate: Option<f64>,
    /// Number of calls.
    most: usize,
    connections: Vec<Connection>,
    tallies: RefCell<Vec<Tally>>,
    /// Calls that are due in the window and have no answer yet.
    unanswered: Cell<usize>,
}

/// The time that is measured: a call counts if it is due in it.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    end: Instant,
}

impl Work {
    async fn open(plan: &Plan, group: &Group, once: bool) -> io::Result<Rc<Work>> {
        let script = Script::read(&group.script)?;
        let mut connections = Vec::new();
        for _ in 0..group.connections {
            connections.push(Connection::open(plan, &script).await?);
        }
        Ok(Rc::new(Work {
            name: group.name.clone(),
            in_flight: group.in_flight,
            rate: group.rate,
            most: if once { script.len() } else { usize::MAX },
            connections,
            tallies: RefCell::new(script.kinds.iter().map(|_| Tally::new()).collect()),
            unanswered: Cell::new(0),
            script,
        }))
    }

    /// Makes the calls and waits for their answers, a bounded time after the end.
    async fn run(self: Rc<Self>, start: Instant, end: Instant) {
        let (window, mut calls) = (Window { start, end }, JoinSet::new());
        let all = async {
            match self.rate {
                Some(rate) => self.open_loop(rate, window, &mut calls).await,
                None => self.closed_loop(window, &mut calls),
            }
            while calls.join_next().await.is_some() {}
        };
        // Calls without an answer by then are counted as such.
        let _ = timeout_at((end + DRAIN).into(), all).await;
    }

    /// Each answer is followed by the next call. Of n calls under way, the first is followed by call n, call 2n and so on,
    /// over the same connection.
    fn closed_loop(self: &Rc<Self>, window: Window, calls: &mut JoinSet<()>) {
        let step = self.connections.len() * self.in_flight;
        for (first, connection) in self.connections.iter().cycle().take(step).enumerate() {
            let (work, mut connection) = (Rc::clone(self), connection.clone());
            calls.spawn_local(async move {
                for number in (first..work.most).step_by(step) {
                    let now = Instant::now();
                    if now >= window.end || work.make(&mut connection, number, now, window).await {
                        return;
                    }
                }
            });
        }
    }

    /// Calls are due at fixed times, and latency counts from these, however late a call could be sent.
    async fn open_loop(self: &Rc<Self>, rate: f64, window: Window, calls: &mut JoinSet<()>) {
        let limit = Arc::new(Semaphore::new(self.connections.len() * self.in_flight));
        let mut due_times = due_times(rate);
        for (number, connection) in self.connections.iter().cycle().enumerate() {
            let Some(due) = due_times.recv().await else { return };
            let permit = Arc::clone(&limit).acquire_owned().await.expect("it is never closed");
            if due >= window.end {
                return;
            }
            let (work, mut connection) = (Rc::clone(self), connection.clone());
            calls.spawn_local(async move {
                work.make(&mut connection, number, due, window).await;
                drop(permit);
            });
            while calls.try_join_next().is_some() {}
        }
    }

    /// Makes one call; returns whether its connection is lost.
    async fn make(&self, connection: &mut Connection, number: usize, due: Instant, window: Window) -> bool {
        let call = self.script.call(number);
        let counts = window.start <= due && due < window.end;
        self.unanswered.set(self.unanswered.get() + usize::from(counts));
        let error = connection.call(call).await;
        let lost = error.as_deref() == Some(LOST);
        if counts {
            self.unanswered.set(self.unanswered.get() - 1);
            self.tallies.borrow_mut()[call.kind].add(due.elapsed(), error);
        }
        lost
    }

    fn to_json(&self) -> Value {
        let kinds: Map<String, Value> = self
            .script
            .kinds
            .iter()
            .zip(self.tallies.borrow().iter())
            .map(|(name, tally)| (name.rsplit('/').next().unwrap_or(name).to_owned(), tally.to_json()))
            .collect();
        json!({"unanswered": self.unanswered.get(), "kinds": kinds})
    }
}

/// Evenly spaced times from now on, each as soon as it has come. A thread keeps them, because timers of an event loop
/// have whole milliseconds; it ends with the receiver.
fn due_times(rate: f64) -> mpsc::Receiver<Instant> {
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

/// CPU seconds of a process so far, user and system, all threads.
fn cpu_seconds(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field is a name in brackets and may have spaces.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let times = fields.get(11..13).unwrap_or_default().iter();
    times.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}
