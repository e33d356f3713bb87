//! What all threads of the engine share.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use h2::Reason;
use tokio::sync::Notify;

use crate::accept::tls::ListenerTls;
use crate::bridge::Bridge;
use crate::cache::Cache;
use crate::classes::Classes;
use crate::connection::scan::NO_ERRORS;
use crate::engine::Setup;
use crate::grpc::status::Statuses;
use crate::known::Known;
use crate::ledger::{Kind, Ledger};
use crate::limits::Limits;
use crate::notices::Notices;
use crate::remoting::answer::GoAway;
use crate::wire::{Wire, client_chain};

/// One method that is served.
#[derive(Debug, Clone, Default)]
pub struct Method {
    /// Its path, `/package.Service/Method`.
    pub path: String,
    /// Whether its request is a stream.
    pub streams_in: bool,
    /// Whether answers to it may be kept.
    pub cached: bool,
    /// Largest message of its request, bytes. Checked before anything of it is kept.
    pub max_message: usize,
    /// The kind that its open calls are counted as.
    pub counted_as: Kind,
    /// The requests of `RocketMQ`'s protocol that it stands for. None in gRPC.
    pub requests: Option<Requests>,
}

/// Requests of `RocketMQ`'s protocol that are counted together.
#[derive(Debug, Clone)]
pub struct Requests {
    /// Their code. None stands for every code that has no method.
    pub code: Option<i32>,
    /// Whether Python may know them by numbers.
    pub may_be_known: bool,
}

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Everything is served.
    Serving = 0,
    /// Nobody new is taken; connections are told to go when their calls have ended.
    Draining = 1,
    /// Connections end.
    Ending = 2,
    /// Threads end, whatever they have.
    Leaving = 3,
}

impl Stage {
    pub(crate) fn of(number: u8) -> Self {
        [Self::Serving, Self::Draining, Self::Ending, Self::Leaving][usize::from(number.min(3))]
    }
}

/// Answers from the cache to one method: those with content, and those that something does not exist.
#[derive(Debug, Default)]
pub(crate) struct Hits {
    found: AtomicU64,
    absent: AtomicU64,
    nanos: AtomicU64,
}

impl Hits {
    pub(crate) fn count(&self, is_absence: bool) {
        let count = if is_absence { &self.absent } else { &self.found };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// So many were answered with content, in this time together.
    pub(crate) fn answered(&self, calls: u32, time: Duration) {
        self.found.fetch_add(u64::from(calls), Ordering::Relaxed);
        self.took(time);
    }

    pub(crate) fn took(&self, time: Duration) {
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A copy of the three.
    pub(crate) fn copy(&self) -> (u64, u64, u64) {
        let Self { found, absent, nanos } = self;
        (found.load(Ordering::Relaxed), absent.load(Ordering::Relaxed), nanos.load(Ordering::Relaxed))
    }
}

/// Numbers that only rise, and what waits.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) refused_connections: AtomicU64,
    /// Of those, the ones whose address had too many.
    pub(crate) refused_of_address: AtomicU64,
    pub(crate) closed_for_waiting: AtomicU64,
    pub(crate) closed_for_cancels: AtomicU64,
    pub(crate) closed_for_floods: AtomicU64,
    pub(crate) refused_calls: AtomicU64,
    pub(crate) cancelled_calls: AtomicU64,
    pub(crate) asked: AtomicU64,
    /// Bytes that wait for readers, of all workers.
    pub(crate) waiting: AtomicUsize,
    /// Open connections of `RocketMQ`'s protocol.
    pub(crate) remoting_connections: AtomicUsize,
}

/// HTTP/2 errors that were reported to clients, by the codes of their reasons (RFC 9113, 7).
#[derive(Debug, Default)]
pub(crate) struct Http2Errors([AtomicU64; 14]);

impl Http2Errors {
    /// Counts one, as `PROTOCOL_ERROR` if its code is none of RFC 9113. Returns the reason that it counts as.
    pub(crate) fn count(&self, reason: Reason) -> Reason {
        let known = usize::try_from(u32::from(reason)).is_ok_and(|code| code < self.0.len());
        let reason = if known { reason } else { Reason::PROTOCOL_ERROR };
        self.0[u32::from(reason) as usize].fetch_add(1, Ordering::Relaxed);
        reason
    }

    /// How many there were of each reason, by name.
    pub(crate) fn by_reason(&self) -> Vec<(String, u64)> {
        let counts = (0..).map(Reason::from).zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)));
        let errors = counts.filter(|(reason, _)| !NO_ERRORS.contains(reason));
        errors.map(|(reason, count)| (format!("{reason:?}"), count)).collect()
    }
}

/// What all threads of the engine share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) methods: Vec<Method>,
    pub(crate) by_path: HashMap<String, u16>,
    /// Methods by the code of their requests. The key None stands for all other codes.
    by_code: HashMap<Option<i32>, u16>,
    pub(crate) hits: Vec<Hits>,
    pub(crate) cache: Cache,
    pub(crate) classes: Classes,
    pub(crate) known: Known,
    pub(crate) bridge: Arc<Bridge>,
    /// What calls are told that the engine itself ends.
    pub(crate) statuses: Arc<Statuses>,
    pub(crate) counts: Counts,
    pub(crate) http2_errors: Http2Errors,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) notices: Notices,
    pub(crate) threads: usize,
    /// Whether Python has to see the calls that their callers have traced.
    pub(crate) follows_traces: bool,
    /// How often permits were read anew.
    pub(crate) permits_generation: AtomicU64,
    tls: RwLock<Option<ListenerTls>>,
    /// How often the authorities of clients' certificates changed.
    authorities_generation: AtomicU64,
    stage: AtomicU8,
    /// The answer to requests of `RocketMQ`'s protocol while the server ends.
    pub(crate) go_away: OnceLock<GoAway>,
    /// Wakes the accepting thread; workers have inboxes.
    pub(crate) next_stage: Notify,
}

#[cfg(test)]
impl Shared {
    /// The state of an engine with one worker.
    pub(crate) fn of(limits: Limits, methods: Vec<Method>) -> Arc<Self> {
        let statuses = Statuses::unknown();
        let setup = Setup { limits, methods, threads: 1, permits: false, follows_traces: false, statuses };
        Arc::new(Self::new(setup).expect("descriptors"))
    }
}

impl Shared {
    /// Fails if the system has no more descriptors.
    pub(crate) fn new(setup: Setup) -> std::io::Result<Self> {
        let Setup { limits, methods, threads, permits, follows_traces, statuses } = setup;
        let threads = threads.clamp(1, 64);
        let bridge = Arc::new(Bridge::new(threads)?);
        let (mut by_path, mut by_code) = (HashMap::new(), HashMap::new());
        for (number, method) in (0..).zip(&methods) {
            match &method.requests {
                None => drop(by_path.insert(method.path.clone(), number)),
                Some(requests) => drop(by_code.insert(requests.code, number)),
            }
        }
        Ok(Self {
            hits: methods.iter().map(|_| Hits::default()).collect(),
            by_path,
            by_code,
            methods,
            cache: Cache::new(limits.cache_bytes),
            classes: Classes::new(permits),
            known: Known::new(permits),
            notices: Notices::new(Arc::clone(&bridge)),
            bridge,
            statuses: Arc::new(statuses),
            counts: Counts::default(),
            http2_errors: Http2Errors::default(),
            ledger: Ledger::new(&limits),
            threads,
            follows_traces,
            permits_generation: AtomicU64::new(0),
            tls: RwLock::new(None),
            authorities_generation: AtomicU64::new(0),
            stage: AtomicU8::new(Stage::Serving as u8),
            go_away: OnceLock::new(),
            next_stage: Notify::new(),
            limits,
        })
    }

    /// The method of requests with a code. Without a code, their header has a form that only Python reads.
    pub(crate) fn method_of_code(&self, code: Option<i32>) -> u16 {
        self.by_code.get(&code).or_else(|| self.by_code.get(&None)).copied().unwrap_or_default()
    }

    pub(crate) fn stage(&self) -> Stage {
        Stage::of(self.stage.load(Ordering::Acquire))
    }

    /// Continues to a stage; never back.
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.bridge.wake_threads();
        self.next_stage.notify_one();
    }

    /// The generation of the permits in force: how often they were read anew.
    pub(crate) fn permits_generation(&self) -> u64 {
        self.permits_generation.load(Ordering::Acquire)
    }

    /// The certificates in force, or None without TLS.
    pub(crate) fn tls(&self) -> Option<ListenerTls> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The generation of the authorities of clients' certificates: how often they changed.
    pub(crate) fn authorities_generation(&self) -> u64 {
        self.authorities_generation.load(Ordering::Acquire)
    }

    /// Whether the authorities in force accept the certificate that a client showed. `checked` is the generation of the last
    /// check.
    pub(crate) fn accepts(&self, wire: &Wire, checked: &Cell<u64>) -> bool {
        let (generation, chain) = (self.authorities_generation(), client_chain(wire));
        checked.replace(generation) == generation || chain.is_empty() || self.tls().is_none_or(|tls| tls.accepts(chain))
    }

    /// Puts certificates in force. If they have other authorities of clients, open connections look whether those accept them.
    pub(crate) fn set_tls(&self, tls: ListenerTls) {
        let mut in_force = self.tls.write().unwrap_or_else(PoisonError::into_inner);
        let same = in_force.as_ref().is_some_and(|before| before.has_authorities_of(&tls));
        *in_force = Some(tls);
        if !same {
            self.authorities_generation.fetch_add(1, Ordering::AcqRel);
            self.bridge.wake_threads();
        }
    }
}
