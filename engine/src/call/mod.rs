//! One call: from its head to its end.
//!
//! A call whose answer is in the cache ends in the poll that read it. Any other gets a task, which is what Python's
//! commands, its deadline, and its client's going reach.

pub(crate) mod reading;
pub(crate) mod request;
pub(crate) mod responder;
pub(crate) mod task;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant as Clock};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, StatusCode};
use tokio::time::{Instant, sleep_until, timeout};

use crate::bridge::{Body, CallInfo, HeldMessage};
use crate::cache::key_into;
use crate::call::reading::Reading;
use crate::call::request::{Head, Refusal, give_window_back, head_of, metadata_size};
use crate::call::responder::Responder;
use crate::call::task::{CallTask, PendingKnownCall};
use crate::connections::ConnectionHandle;
use crate::grpc::message::Assembler;
use crate::grpc::payload::Payload;
use crate::grpc::status::Status;
use crate::ledger::{Hold, Kind, Over};
use crate::peer::Peer;
use crate::shared::Shared;
use crate::worker::Worker;

/// Most of a request that is not gRPC that is read before it is answered.
const MAX_FOREIGN_BODY: usize = 64 << 10;

/// What a call takes beyond its metadata and messages: its task, its timer, and the state of its stream. As measured, 3.8 KiB.
pub(crate) const CALL_BYTES: usize = 4 << 10;

/// Times the hits of one poll together: two looks at the clock, however many there are.
#[derive(Default)]
pub(crate) struct HitClock {
    begun: Option<Clock>,
    by_method: BTreeMap<u16, u32>,
    /// All of them.
    pub(crate) count: u32,
}

impl HitClock {
    pub(crate) fn begin(&mut self) {
        self.begun.get_or_insert_with(Clock::now);
    }

    pub(crate) fn hit(&mut self, method: u16) {
        *self.by_method.entry(method).or_default() += 1;
        self.count += 1;
    }

    /// The poll is over: its hits share its time.
    pub(crate) fn stop(self, worker: &Worker) {
        let Some(begun) = self.begun else { return };
        let took = begun.elapsed();
        for (method, hits) in self.by_method {
            worker.shared.hits[usize::from(method)].took(took * hits / self.count);
        }
    }
}

/// Begins a call, and ends it at once if the request and the cache suffice.
pub(crate) fn begin(
    worker: &Rc<Worker>,
    connection: &Rc<ConnectionHandle>,
    request: Request<RecvStream>,
    respond: SendResponse<Payload>,
    hits: &mut HitClock,
    cx: &mut Context<'_>,
) {
    let (parts, mut body) = request.into_parts();
    let (peer, mut responder) = (&connection.peer, Responder::new(respond, &connection.waiting));
    let head = match head_of(&parts, peer, &worker.shared) {
        Ok(head) => head,
        Err(Refusal::Grpc(status)) => return responder.refuse(&status),
        Err(Refusal::Http(status)) => {
            match hold(peer, Kind::Calls, metadata_size(&parts.headers)) {
                Ok(held) => {
                    let patience = worker.shared.limits.body_timeout;
                    tokio::task::spawn_local(turn_away(Rc::clone(connection), responder, body, status, held, patience));
                }
                Err(_) => responder.refuse_http(status),
            }
            return;
        }
    };
    let shared = &worker.shared;
    if connection.is_refused.get() {
        return responder.refuse(&shared.statuses.refused_certificate);
    }
    let deadline = head.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let credentials =
        shared.classes.credentials(&parts.headers, peer.certificate.as_ref().map(|certificate| &certificate.digest));
    let mut call = OpenCall {
        worker: Rc::clone(worker),
        connection: Rc::clone(connection),
        head,
        headers: parts.headers,
        responder,
        deadline,
        credentials,
        generation: shared.permits_generation(),
    };
    if head.of(shared).streams_in {
        if let Some(admitted) = call.admit(0) {
            call.ask(admitted, None, Some(body));
        }
        return;
    }
    let first = match body.poll_data(cx) {
        Poll::Ready(Some(Ok(first))) => first,
        Poll::Ready(Some(Err(_))) => return connection.count_cancel(),
        Poll::Ready(None) => {
            return call.responder.refuse(&Status::no_whole_message());
        }
        Poll::Pending => Bytes::new(),
    };
    if body.is_end_stream() {
        if let Some(message) = Assembler::whole(&first, call.head.of(shared).max_message) {
            drop(body);
            hits.begin();
            if !call.answer_from_cache(&message, Some(hits)) {
                if let Some(admitted) = call.admit(message.len()) {
                    call.ask(admitted, Some(message), None);
                }
            }
            return;
        }
    }
    if let Some(admitted) = call.admit(0) {
        tokio::task::spawn_local(call.receive(admitted, first, body));
    }
}

/// The share that a call holds in the account of its address once it is more than a hit.
struct Admitted {
    place: Hold,
    /// Of its metadata, and then of its message.
    bytes: Hold,
}

/// Has the account of an address hold a call and so many bytes of its request. Fails with the kind that has no capacity.
fn hold(peer: &Peer, kind: Kind, bytes: usize) -> Result<Admitted, (Kind, Over)> {
    let place = peer.account.hold(kind, 1).map_err(|over| (kind, over))?;
    let bytes = peer.account.hold(Kind::BytesIn, CALL_BYTES + bytes).map_err(|over| (Kind::BytesIn, over))?;
    Ok(Admitted { place, bytes })
}

/// A call whose head has been read and that is not answered yet.
pub(crate) struct OpenCall {
    worker: Rc<Worker>,
    connection: Rc<ConnectionHandle>,
    head: Head,
    headers: HeaderMap,
    responder: Responder,
    deadline: Option<Instant>,
    /// What identifies callers with the same certificate and token; None if nothing does.
    credentials: Option<Bytes>,
    /// The generation of permits in force when it began.
    generation: u64,
}

impl OpenCall {
    fn shared(&self) -> &Arc<Shared> {
        &self.worker.shared
    }

    /// Answers from the cache, if the answer is there and the caller may have it. Whether it did.
    fn answer_from_cache(&mut self, message: &Bytes, hits: Option<&mut HitClock>) -> bool {
        let shared = Arc::clone(self.shared());
        if !self.head.of(&shared).cached || self.head.sampled {
            return false;
        }
        let Some(class) = shared.classes.class_of(self.credentials.as_ref()) else { return false };
        let found = {
            let mut key = self.worker.key.borrow_mut();
            key_into(&mut key, class, self.head.method, message);
            shared.cache.find(&key)
        };
        let Some(hit) = found else { return false };
        let is_absence = hit.answer.is_absence();
        if self.responder.answer_hit(hit).is_ok() {
            shared.hits[usize::from(self.head.method)].count(is_absence);
            if let Some(hits) = hits {
                hits.hit(self.head.method);
            }
        }
        true
    }

    /// Has the account of its address hold the call and so many bytes of its request; refuses it if there is no capacity.
    fn admit(&mut self, bytes: usize) -> Option<Admitted> {
        match hold(&self.connection.peer, self.head.of(self.shared()).counted_as, self.head.metadata_size + bytes) {
            Ok(admitted) => Some(admitted),
            Err((kind, over)) => {
                let shared = Arc::clone(self.shared());
                shared.counts.refused_calls.fetch_add(1, Ordering::Relaxed);
                self.responder.refuse(&shared.statuses.over(kind, over));
                None
            }
        }
    }

    /// Hands the call to Python, and a task to the call.
    fn ask(mut self, admitted: Admitted, message: Option<Bytes>, body: Option<RecvStream>) {
        let shared = Arc::clone(self.shared());
        let Admitted { place, mut bytes } = admitted;
        let reading = body.map(|body| self.reading(body, &mut bytes));
        shared.counts.asked.fetch_add(1, Ordering::Relaxed);
        // A call whose caller has it traced is seen as a whole.
        let known = message.as_ref().filter(|_| !self.head.sampled).and_then(|message| {
            let mut key = self.worker.key.borrow_mut();
            shared.known.number_of(&mut key, self.head.method, self.credentials.as_ref(), message, &[])
        });
        let info = Arc::new(CallInfo {
            id: self.worker.call_id(),
            method: self.head.method,
            headers: std::mem::take(&mut self.headers),
            frame: None,
            peer: Arc::clone(&self.connection.peer),
            credentials: self.credentials.take(),
            known,
            generation: self.generation,
            body: Body::of(message, bytes),
        });
        shared.bridge.tell_call(Arc::clone(&info));
        if info.known.is_some() && PendingKnownCall::has_room(&self.connection) {
            PendingKnownCall::wait(self, info, place);
        } else {
            CallTask::spawn(self, info, place, reading);
        }
    }

    /// The reading side, whose bytes count as some do already.
    fn reading(&self, body: RecvStream, counted: &mut Hold) -> Reading {
        let shared = self.shared();
        Reading::new(body, Assembler::new(self.head.of(shared).max_message, &shared.statuses, counted.split(0)))
    }

    /// Waits for the rest of a request of one message, then answers.
    async fn receive(mut self, mut admitted: Admitted, first: Bytes, body: RecvStream) {
        let mut reading = self.reading(body, &mut admitted.bytes);
        let patience = Instant::now() + self.shared().limits.body_timeout;
        let until = self.deadline.map_or(patience, |deadline| deadline.min(patience));
        let message = {
            let Self { worker, headers, responder, .. } = &mut self;
            tokio::select! {
                biased;
                message = reading.only_message(first, worker, headers) => Some(message),
                () = poll_fn(|cx| responder.poll_gone(cx)) => None,
                () = sleep_until(until) => Some(Err(Some(Status::deadline_exceeded()))),
            }
        };
        match message {
            None | Some(Err(None)) => self.connection.count_cancel(),
            Some(Ok(HeldMessage { bytes, held })) => {
                drop(reading);
                if !self.answer_from_cache(&bytes, None) {
                    admitted.bytes.merge(held);
                    self.ask(admitted, Some(bytes), None);
                }
            }
            Some(Err(Some(status))) => self.responder.refuse(&status),
        }
    }
}

/// Answers a request that is not gRPC, once it has ended. Errors of HTTP/2 at that end are reported first.
async fn turn_away(
    connection: Rc<ConnectionHandle>,
    mut responder: Responder,
    mut body: RecvStream,
    status: StatusCode,
    _held: Admitted,
    patience: Duration,
) {
    let mut read = 0;
    let ended = timeout(patience, async {
        while let Some(bytes) = poll_fn(|cx| body.poll_data(cx)).await.transpose()? {
            read += bytes.len();
            if read > MAX_FOREIGN_BODY {
                return Ok(());
            }
            give_window_back(&mut body, bytes.len());
        }
        poll_fn(|cx| body.poll_trailers(cx)).await.map(drop)
    });
    match ended.await {
        Ok(Ok(())) => responder.refuse_http(status),
        Ok(Err(_)) => connection.count_cancel(),
        Err(_) => {} // dropping the stream resets it
    }
}
