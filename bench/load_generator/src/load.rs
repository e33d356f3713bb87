//! Runs a plan: connections dealt out to threads, each with an event loop of its own.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{json, Map, Value};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::event_loop::block_on;
use crate::outcome::{Tally, LOST};
use crate::pacer::due_times;
use crate::plan::{Group, Plan};
use crate::process::{cpu_seconds, memory_bytes};
use crate::script::{Call, Script};

/// How long answers are waited for after the end.
const DRAIN: Duration = Duration::from_secs(15);
const LONGEST_FILL: Duration = Duration::from_secs(300);

/// A group and what all threads share of it.
struct Work {
    group: Group,
    script: Script,
    /// Number of calls that were taken from the script.
    taken: AtomicUsize,
}

impl Work {
    fn new(group: &Group) -> io::Result<Arc<Work>> {
        let script = Script::read(&group.script)?;
        Ok(Arc::new(Work {
            group: group.clone(),
            script,
            taken: AtomicUsize::new(0),
        }))
    }

    fn next(&self) -> Option<&Call> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let over = self.group.calls.is_some_and(|calls| number >= calls);
        (!over).then(|| self.script.call(number))
    }

    fn is_through(&self) -> bool {
        self.group
            .calls
            .is_some_and(|calls| self.taken.load(Ordering::Relaxed) >= calls)
    }
}

/// The time that is measured: a call counts if it is due in it.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    end: Instant,
}

/// What the threads and the main one share and meet at.
struct Meeting {
    plan: Plan,
    works: Vec<Arc<Work>>,
    /// Everybody is connected.
    ready: Barrier,
    /// The window is set.
    go: Barrier,
    window: OnceLock<Window>,
}

/// What one thread has to tell of one group.
struct PartOutcome {
    tallies: Vec<Tally>,
    unanswered: usize,
    last_answer: Instant,
}

/// Runs the plan; returns what came of it.
pub fn run(plan: Plan) -> io::Result<Value> {
    let works = plan.groups.iter().map(Work::new).collect::<io::Result<_>>()?;
    let threads = plan.threads;
    let meeting = Arc::new(Meeting {
        plan,
        works,
        ready: Barrier::new(threads + 1),
        go: Barrier::new(threads + 1),
        window: OnceLock::new(),
    });
    let fill_seconds = fill(&meeting)?;
    let connecting = Instant::now();
    let (tell, told) = mpsc::channel();
    for number in 0..threads {
        let (meeting, tell) = (Arc::clone(&meeting), tell.clone());
        thread::spawn(move || {
            let outcome = block_on(run_thread(&meeting, number)).unwrap_or_else(|error| fail(&meeting.plan, &error));
            // Whoever waits for it has ended if nobody takes it.
            let _ = tell.send(outcome);
        });
    }
    conduct(&meeting, &told, fill_seconds, connecting)
}

/// Sets the window, reads CPU time at both its ends, and gathers what the threads tell.
fn conduct(
    meeting: &Meeting,
    told: &mpsc::Receiver<Vec<PartOutcome>>,
    fill_seconds: f64,
    connecting: Instant,
) -> io::Result<Value> {
    let plan = &meeting.plan;
    let window = block_on(async {
        meeting.ready.wait().await;
        let start = Instant::now() + Duration::from_secs_f64(plan.warm_up_seconds);
        let window = Window {
            start,
            end: start + Duration::from_secs_f64(plan.seconds),
        };
        let set = meeting.window.set(window);
        assert!(set.is_ok(), "nobody else sets it");
        meeting.go.wait().await;
        Ok(window)
    })?;
    let connect_seconds = (window.start - connecting).as_secs_f64() - plan.warm_up_seconds;
    let own_pid = [std::process::id()];
    thread::sleep(window.start.saturating_duration_since(Instant::now()));
    let (server_before, load_before) = (cpu_seconds(&plan.server_pids), cpu_seconds(&own_pid));
    let mut outcomes = Vec::new();
    while outcomes.len() < plan.threads {
        let left = window.end.saturating_duration_since(Instant::now());
        match told.recv_timeout(left) {
            Ok(outcome) => outcomes.push(outcome),
            Err(_) => break,
        }
    }
    let (server_after, load_after) = (cpu_seconds(&plan.server_pids), cpu_seconds(&own_pid));
    let measured = window.end.min(Instant::now()) - window.start;
    while outcomes.len() < plan.threads {
        outcomes.push(told.recv_timeout(2 * DRAIN).map_err(io::Error::other)?);
    }
    Ok(json!({
        "fill_seconds": fill_seconds,
        "connect_seconds": connect_seconds,
        "seconds": measured.as_secs_f64(),
        "server_cpu_seconds": server_after - server_before,
        "load_cpu_seconds": load_after - load_before,
        "server_memory_bytes": memory_bytes(&plan.server_pids, "VmRSS"),
        "server_peak_memory_bytes": memory_bytes(&plan.server_pids, "VmHWM"),
        "groups": groups_json(meeting, window, &outcomes),
    }))
}

fn groups_json(meeting: &Meeting, window: Window, outcomes: &[Vec<PartOutcome>]) -> Value {
    let mut groups = Map::new();
    for (number, work) in meeting.works.iter().enumerate() {
        let parts: Vec<&PartOutcome> = outcomes.iter().map(|outcome| &outcome[number]).collect();
        let mut kinds = Map::new();
        for (kind, name) in work.script.kinds.iter().enumerate() {
            let mut tally = Tally::new();
            parts.iter().for_each(|part| tally.merge(&part.tallies[kind]));
            kinds.insert(name.rsplit('/').next().unwrap_or(name).to_owned(), tally.to_json());
        }
        let last = parts.iter().map(|part| part.last_answer).max().unwrap_or(window.start);
        let group = json!({
            "unanswered": parts.iter().map(|part| part.unanswered).sum::<usize>(),
            "last_answer_seconds": last.saturating_duration_since(window.start).as_secs_f64(),
            "kinds": kinds,
        });
        groups.insert(work.group.name.clone(), group);
    }
    Value::Object(groups)
}

/// Sends the fill's calls; its connections stay open in a thread of their own. Returns the seconds that it took.
fn fill(meeting: &Arc<Meeting>) -> io::Result<f64> {
    let Some(group) = &meeting.plan.fill else {
        return Ok(0.0);
    };
    let work = Work::new(group)?;
    let began = Instant::now();
    let (tell, told) = mpsc::channel();
    let meeting = Arc::clone(meeting);
    thread::spawn(move || {
        let filled = block_on(async {
            let connections = open(&meeting.plan, &work, 0).await?;
            let part = Part::new(
                work,
                connections,
                Window {
                    start: began,
                    end: began + LONGEST_FILL,
                },
            );
            Rc::clone(&part).run().await;
            let errors: Vec<String> = part.tallies.borrow().iter().flat_map(Tally::errors).collect();
            if !errors.is_empty() {
                return Err(io::Error::other(format!("filling: {}", errors.join(", "))));
            }
            let _ = tell.send(());
            // Some servers forget what was registered over a connection that ends. The process ends this one.
            std::future::pending::<io::Result<()>>().await
        });
        if let Err(error) = filled {
            fail(&meeting.plan, &error);
        }
    });
    told.recv().map_err(io::Error::other)?;
    Ok(began.elapsed().as_secs_f64())
}

async fn run_thread(meeting: &Meeting, number: usize) -> io::Result<Vec<PartOutcome>> {
    let mut opened = Vec::new();
    for work in &meeting.works {
        opened.push(open(&meeting.plan, work, number).await?);
    }
    meeting.ready.wait().await;
    meeting.go.wait().await;
    let window = *meeting.window.get().expect("it was set before");
    let mut parts = Vec::new();
    let mut running = JoinSet::new();
    for (work, connections) in meeting.works.iter().zip(opened) {
        let part = Part::new(Arc::clone(work), connections, window);
        running.spawn_local(Rc::clone(&part).run());
        parts.push(part);
    }
    running.join_all().await;
    Ok(parts.iter().map(|part| part.outcome()).collect())
}

/// Opens a thread's share of a group's connections.
async fn open(plan: &Plan, work: &Work, number: usize) -> io::Result<Vec<Connection>> {
    let mut connections = Vec::new();
    for _ in (number..work.group.connections).step_by(plan.threads) {
        connections.push(Connection::open(plan, &work.script).await?);
    }
    Ok(connections)
}

/// One thread's part of a group.
struct Part {
    work: Arc<Work>,
    connections: Vec<Connection>,
    window: Window,
    tallies: RefCell<Vec<Tally>>,
    /// Calls that are due in the window and have no answer yet.
    open: Cell<usize>,
    last_answer: Cell<Instant>,
}

impl Part {
    fn new(work: Arc<Work>, connections: Vec<Connection>, window: Window) -> Rc<Part> {
        let tallies = RefCell::new(work.script.kinds.iter().map(|_| Tally::new()).collect());
        Rc::new(Part {
            work,
            connections,
            window,
            tallies,
            open: Cell::new(0),
            last_answer: Cell::new(window.start),
        })
    }

    /// Makes the calls and waits for their answers, a bounded time after the end.
    async fn run(self: Rc<Self>) {
        let drained = (self.window.end + DRAIN).into();
        let mut calls = JoinSet::new();
        let all = async {
            match self.work.group.rate {
                Some(rate) => self.open_loop(rate, &mut calls).await,
                None => self.closed_loop(&mut calls),
            }
            while calls.join_next().await.is_some() {}
        };
        // What has no answer by then is counted as such.
        let _ = tokio::time::timeout_at(drained, all).await;
    }

    /// Each answer is followed by the next call.
    fn closed_loop(self: &Rc<Self>, calls: &mut JoinSet<()>) {
        for connection in &self.connections {
            for _ in 0..self.work.group.in_flight {
                let (part, mut connection) = (Rc::clone(self), connection.clone());
                calls.spawn_local(async move {
                    while Instant::now() < part.window.end {
                        let Some(call) = part.work.next() else { return };
                        if part.make(&mut connection, call, Instant::now()).await {
                            return;
                        }
                    }
                });
            }
        }
    }

    /// Calls are due at fixed times, and latency counts from these, however late a call could be sent.
    async fn open_loop(self: &Rc<Self>, rate: f64, calls: &mut JoinSet<()>) {
        let group = &self.work.group;
        let limit = Arc::new(Semaphore::new(self.connections.len() * group.in_flight));
        let share = self.connections.len() as f64 / group.connections as f64;
        let mut due_times = due_times(rate * share);
        for connection in self.connections.iter().cycle() {
            let Some(due) = due_times.recv().await else { return };
            let permit = Arc::clone(&limit).acquire_owned().await.expect("it is never closed");
            let part = Rc::clone(self);
            if due >= part.window.end || part.work.is_through() {
                return;
            }
            let mut connection = connection.clone();
            calls.spawn_local(async move {
                if let Some(call) = part.work.next() {
                    part.make(&mut connection, call, due).await;
                }
                drop(permit);
            });
            while calls.try_join_next().is_some() {}
        }
    }

    /// Makes one call; returns whether its connection is lost.
    async fn make(&self, connection: &mut Connection, call: &Call, due: Instant) -> bool {
        let counts = self.window.start <= due && due < self.window.end;
        self.open.set(self.open.get() + usize::from(counts));
        let ended = connection.call(call).await;
        let lost = ended.error.as_deref() == Some(LOST);
        if counts {
            let now = Instant::now();
            self.open.set(self.open.get() - 1);
            self.last_answer.set(now);
            self.tallies.borrow_mut()[call.kind].add(now - due, call.data.len(), ended);
        }
        lost
    }

    fn outcome(&self) -> PartOutcome {
        PartOutcome {
            tallies: self.tallies.take(),
            unanswered: self.open.get(),
            last_answer: self.last_answer.get(),
        }
    }
}

/// Ends the program: the other threads would wait for this one.
fn fail(plan: &Plan, error: &io::Error) -> ! {
    eprintln!("{}: {error}", plan.target);
    std::process::exit(1)
}
