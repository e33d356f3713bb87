//! The engine as Rust sees it: made, given listeners and certificates, started, stopped.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::Instant;

use crate::accept::rates::Rates;
use crate::accept::tls::listener_tls;
use crate::accept::{self, Door, listener_of};
use crate::bridge::{CallId, CallInfo, Command, Event, locked};
use crate::cache::{Answer, Cache, key_into};
use crate::grpc::status::Statuses;
use crate::ledger::{CALLS, Kind};
use crate::limits::Limits;
use crate::panics::text_of;
use crate::peer::Owner;
use crate::remoting::answer::GoAway;
use crate::shared::{Hits, Method, Shared, Stage};
use crate::worker;

/// Most events that are handed over in one iteration of the event loop.
pub const EVENTS_PER_TURN: usize = 256;

/// Answers of one address that come into the cache, KiB a second, and the time after which as many come at once. So one
/// address does not push out those of all others.
const FILL_RATE: u32 = 2_048;
const FILL_BURST: Duration = Duration::from_secs(10);

/// The configuration of an engine.
#[derive(Debug)]
pub struct Setup {
    /// Its bounds.
    pub limits: Limits,
    /// What it serves.
    pub methods: Vec<Method>,
    /// Threads that serve connections.
    pub threads: usize,
    /// Whether callers need permits; without, all are of one class.
    pub permits: bool,
    /// Whether Python follows the traces of callers, and so has to see calls that these have traced.
    pub follows_traces: bool,
    /// What calls are told that the engine itself ends.
    pub statuses: Statuses,
}

/// Sockets, TLS, HTTP/2, and the cache of answers.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<(TcpListener, Door)>>,
    commands: Mutex<Vec<(CallId, Command)>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    fill_rates: Mutex<Rates>,
}

impl Engine {
    /// An engine that does nothing yet.
    ///
    /// # Errors
    ///
    /// The system has no more descriptors.
    pub fn new(setup: Setup) -> std::io::Result<Self> {
        let shared = Shared::new(setup)?;
        Ok(Self {
            fill_rates: Mutex::new(Rates::new(FILL_RATE, FILL_BURST, Instant::now())),
            shared: Arc::new(shared),
            listeners: Mutex::default(),
            commands: Mutex::default(),
            threads: Mutex::default(),
        })
    }

    /// Takes a socket that is bound and listens, and what is spoken there.
    ///
    /// # Errors
    ///
    /// It is no listener of TCP.
    pub fn listen(&self, socket: OwnedFd, door: Door) -> std::io::Result<()> {
        locked(&self.listeners).push((listener_of(socket)?, door));
        Ok(())
    }

    /// Has connections talk TLS from now on. Open connections stay open, unless `client_ca` no longer accepts the
    /// certificate that their client showed.
    ///
    /// # Errors
    ///
    /// What is wrong with which of the three, in words.
    pub fn set_tls(&self, certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<(), String> {
        self.shared.set_tls(listener_tls(certificate, key, client_ca)?);
        Ok(())
    }

    /// Begins to accept.
    ///
    /// # Errors
    ///
    /// The system has no more threads.
    pub fn start(&self) -> std::io::Result<()> {
        let left = Arc::new(Leaving(Arc::clone(&self.shared)));
        let mut workers = Vec::new();
        for number in 0..self.shared.threads {
            let (sender, receiver) = unbounded_channel(); // bounded by max_connections
            workers.push(sender);
            let shared = Arc::clone(&self.shared);
            self.spawn(format!("engine-{number}"), &left, move || worker::run(shared, number, receiver))?;
        }
        let listeners = std::mem::take(&mut *locked(&self.listeners));
        let shared = Arc::clone(&self.shared);
        self.spawn("engine-accept".into(), &left, move || accept::run(shared, listeners, workers))
    }

    fn spawn(
        &self,
        name: String,
        left: &Arc<Leaving>,
        run: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> std::io::Result<()> {
        let (shared, left) = (Arc::clone(&self.shared), Arc::clone(left));
        let builder = std::thread::Builder::new().name(name.clone());
        let thread = builder.spawn(move || {
            supervise(&name, &shared, run);
            drop(left);
        })?;
        locked(&self.threads).push(thread);
        Ok(())
    }

    /// Readable while there are events.
    #[must_use]
    pub fn wakeup(&self) -> BorrowedFd<'_> {
        self.shared.bridge.wakeup.as_fd()
    }

    /// The oldest events, `EVENTS_PER_TURN` at most.
    #[must_use]
    pub fn take(&self) -> Vec<Event> {
        self.shared.bridge.take(EVENTS_PER_TURN)
    }

    /// Wants something done with a call, at the next `flush`.
    pub fn command(&self, id: CallId, command: Command) {
        locked(&self.commands).push((id, command));
    }

    /// Writes the same message to many streams, at the next `flush`.
    pub fn write_all(&self, ids: &[CallId], message: &Bytes) {
        let commands = ids.iter().map(|id| (*id, Command::Write(message.clone(), ids.len())));
        locked(&self.commands).extend(commands);
    }

    /// Hands over what was wanted since the last time.
    pub fn flush(&self) {
        self.shared.bridge.give(&mut locked(&self.commands));
    }

    /// Keeps an answer for callers of the same class as this call's. False if there is no capacity for it, or if permits were
    /// read anew since the call began.
    pub fn put<T: AsRef<[u8]>>(
        &self,
        call: &CallInfo,
        answer: Answer,
        dependencies: impl IntoIterator<Item = T>,
        generation: u64,
    ) -> bool {
        let (Some(request), Some(class)) = (call.key(), self.shared.classes.class_of(call.credentials.as_ref())) else {
            return false;
        };
        let kept = (request.len() + answer.size()) >> 10;
        if call.generation < self.shared.permits_generation() || !self.may_fill(call.peer.account.owner, kept) {
            return false;
        }
        let mut key = Vec::with_capacity(request.len() + 6);
        key_into(&mut key, class, call.method, &request);
        self.shared.cache.put(&key, answer, dependencies, generation)
    }

    /// Whether so many KiB of an owner may come into the cache now.
    fn may_fill(&self, owner: Owner, kib: usize) -> bool {
        let Owner::Site(site) = owner else { return true };
        let (mut rates, now) = (locked(&self.fill_rates), Instant::now());
        (0..=kib).all(|_| rates.admit(site, now))
    }

    /// The cache of answers.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// Remembers the class of all callers with this call's credentials.
    pub fn set_class(&self, call: &CallInfo, class: u32) {
        if let Some(credentials) = &call.credentials {
            self.shared.classes.set(credentials.clone(), class, call.generation);
        }
    }

    /// Has every caller be decided on again, because permits were read anew. Whatever calls that began before still teach
    /// the engine is refused.
    pub fn renew_permits(&self) {
        let generation = self.shared.permits_generation.fetch_add(1, Ordering::AcqRel) + 1;
        self.shared.classes.forget(generation);
        self.shared.known.forget_until(generation);
    }

    /// Has Python get a number instead of calls like this one, from the same caller. Whether it is short enough.
    pub fn know(&self, call: &CallInfo, number: u64) -> bool {
        let Some(request) = call.request() else { return false };
        let Some(frame) = &call.frame else { return self.shared.known.put(call, &request, &[], number) };
        frame.known_key(&request).is_some_and(|(key, body)| self.shared.known.put(call, &key, body, number))
    }

    /// Forgets the numbers of all requests.
    pub fn forget_known(&self) {
        self.shared.known.forget();
    }

    /// Answers calls that Python got by their numbers, at the next `flush`, and counts them. `took` is the time of all.
    pub fn answer_known<'a>(&self, answered: impl IntoIterator<Item = (&'a CallInfo, Bytes)>, took: Duration) {
        let mut by_method: BTreeMap<u16, u32> = BTreeMap::new();
        let mut commands = locked(&self.commands);
        for (call, message) in answered {
            commands.push((call.id, Command::Answer(message)));
            *by_method.entry(call.method).or_default() += 1;
        }
        let all: u32 = by_method.values().sum();
        for (method, calls) in by_method {
            self.shared.hits[usize::from(method)].answered(calls, took * calls / all);
        }
    }

    /// Sets the answer to requests of `RocketMQ`'s protocol that arrive while the engine drains. The first call counts.
    pub fn set_go_away(&self, go_away: GoAway) {
        let _ = self.shared.go_away.set(go_away);
    }

    /// Continues the end: 1 drains, 2 ends connections, 3 leaves them.
    pub fn stop(&self, stage: u8) {
        self.shared.set_stage(Stage::of(stage));
    }

    /// Waits until the threads have ended.
    pub fn join(&self) {
        for thread in std::mem::take(&mut *locked(&self.threads)) {
            let _ = thread.join(); // one that panicked has ended, too
        }
    }

    /// Counters and gauges by name.
    #[must_use]
    pub fn stats(&self) -> Vec<(&'static str, u64)> {
        let (counts, cache) = (&self.shared.counts, &self.shared.cache);
        vec![
            ("remoting_connections", counts.remoting_connections.load(Relaxed) as u64),
            ("connections", self.shared.ledger.held(Kind::Connections) as u64),
            ("accepted_connections", counts.accepted.load(Relaxed)),
            ("refused_connections", counts.refused_connections.load(Relaxed)),
            ("refused_of_address", counts.refused_of_address.load(Relaxed)),
            ("closed_for_waiting", counts.closed_for_waiting.load(Relaxed)),
            ("closed_for_cancels", counts.closed_for_cancels.load(Relaxed)),
            ("closed_for_floods", counts.closed_for_floods.load(Relaxed)),
            ("refused_calls", counts.refused_calls.load(Relaxed)),
            ("cancelled_calls", counts.cancelled_calls.load(Relaxed)),
            ("asked_calls", counts.asked.load(Relaxed)),
            ("calls_under_way", CALLS.map(|kind| self.shared.ledger.held(kind) as u64).iter().sum()),
            ("request_bytes", self.shared.ledger.held(Kind::BytesIn) as u64),
            ("waiting_bytes", counts.waiting.load(Relaxed) as u64),
            ("cache_bytes", cache.bytes() as u64),
            ("cache_answers", cache.answers() as u64),
        ]
    }

    /// HTTP/2 errors that were reported to clients, by the names of their reasons (RFC 9113, 7).
    #[must_use]
    pub fn http2_errors(&self) -> Vec<(String, u64)> {
        self.shared.http2_errors.by_reason()
    }

    /// Answers from the cache, of each method: with content, that something does not exist, and the nanoseconds of both.
    #[must_use]
    pub fn hits(&self) -> Vec<(u64, u64, u64)> {
        self.shared.hits.iter().map(Hits::copy).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop(3);
    }
}

/// Runs a thread, and tells Python if it ends in another way than it was asked to.
fn supervise(name: &str, shared: &Shared, run: impl FnOnce() -> Result<(), String>) {
    let ended = catch_unwind(AssertUnwindSafe(run));
    let cause = match ended {
        Ok(Ok(())) => return,
        Ok(Err(cause)) => cause,
        Err(panic) => text_of(&*panic).to_owned(),
    };
    shared.bridge.tell(Event::Failed(format!("the thread {name} of the engine ended: {cause}")));
}

/// Tells Python that all threads have ended, when the last of them drops it.
struct Leaving(Arc<Shared>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.bridge.tell(Event::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_after(run: impl FnOnce() -> Result<(), String>) -> Vec<String> {
        let shared = Shared::of(Limits::default(), Vec::new());
        supervise("engine-7", &shared, run);
        let causes = shared.bridge.take(1).into_iter().filter_map(|event| match event {
            Event::Failed(cause) => Some(cause),
            _ => None,
        });
        causes.collect()
    }

    #[test]
    fn a_thread_that_ends_unasked_is_told_with_its_cause() {
        let told = told_after(|| panic!("a lock was {}", "held"));
        assert_eq!(told, ["the thread engine-7 of the engine ended: a lock was held"]);
        let told = told_after(|| Err("no descriptors".into()));
        assert_eq!(told, ["the thread engine-7 of the engine ended: no descriptors"]);
        assert!(told_after(|| Ok(())).is_empty());
    }
}
