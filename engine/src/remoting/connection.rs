//! One connection of `RocketMQ`'s protocol: its slices, its answers, its patience, its end.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::accept::Accepted;
use crate::accept::mistakes::{Carrier, TELLING, of_foreign};
use crate::bridge::{Body, CallInfo, FrameInfo};
use crate::cache::{Answer, key_into};
use crate::call::HitClock;
use crate::connection::{FAREWELL, goodbye};
use crate::connections::ConnectionHandle;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::remoting::call::Link;
use crate::remoting::frame::{Cut, Frame, PREFIX};
use crate::remoting::head::Head;
use crate::remoting::incoming::{Incoming, READ, Taken};
use crate::remoting::patience::Patience;
use crate::scheduler::Slice;
use crate::shared::Stage;
use crate::wire::Wire;
use crate::worker::Worker;

/// The event in the log when a connection is ended for what its peer does.
const ENDED: &str = "remoting_connection_ended";

/// Most requests of one connection that Python has. Beyond it nothing more is read from it.
const MAX_UNDER_WAY: usize = 32;

/// Bytes on their way to a peer from which on nothing more is read from it. One answer may exceed it.
const MAX_UNSENT: usize = 1 << 20;

/// What a slice may take: cached answers, and so many of these for each request that Python gets.
const HITS_PER_TURN: usize = 64;
const OTHER_CALL: usize = 8;

/// How long a connection stays when the server ends: clients that ask in that time learn that they should ask elsewhere.
const GO_AWAY_TIME: Duration = Duration::from_millis(250);

/// Pauses between two attempts to get memory, the first and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Serves a connection to its end.
pub(crate) async fn serve(worker: Rc<Worker>, arrived: Accepted) {
    let Accepted { wire, peer, place: _place, carrier, .. } = arrived;
    let Ok(mut wire) = wire.attach() else { return };
    if carrier == Carrier::TlsMissing {
        let problem = without_tls(&mut wire).await;
        return worker.shared.notices.tell(ENDED, &peer.address, &format!("TLS: {problem}"));
    }
    let Ok(connection) = Connection::new(wire, Rc::clone(&worker), peer) else { return };
    worker.shared.counts.remoting_connections.fetch_add(1, Ordering::Relaxed);
    if let Some(wire) = connection.await {
        goodbye(wire).await;
    }
    worker.connections.report();
}

/// The problem of a client that does not begin with TLS.
async fn without_tls(wire: &mut Wire) -> &'static str {
    use tokio::io::AsyncReadExt;
    let mut came = Vec::with_capacity(TELLING);
    let _ = timeout(FAREWELL, wire.take(TELLING as u64).read_to_end(&mut came)).await; // else that little must do
    of_foreign(&came).unwrap_or("it speaks none, which this port wants (--remoting-tls)")
}

/// How a connection ends.
enum End {
    /// At once.
    Now,
    /// Once the peer has what it was told.
    Politely,
}

struct Connection {
    wire: Option<Wire>,
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
    link: Rc<Link>,
    incoming: Incoming,
    outgoing: Outgoing,
    patience: Patience,
    timer: Pin<Box<Sleep>>,
    /// The pause before the next attempt to get memory.
    pause: Duration,
    /// Until when the peer may take its last answers.
    leaves_until: Option<Instant>,
    /// Until when requests are answered with `GO_AWAY`, because the server ends. Otherwise a connection that leaves reads nothing.
    goes_away_until: Option<Instant>,
    /// What identifies its caller; None where there are no permits.
    credentials: Option<Bytes>,
    /// The last field, so that its last slice ends once all else is freed.
    slice: Slice,
}

impl Connection {
    fn new(wire: Wire, worker: Rc<Worker>, peer: Peer) -> Result<Self, crate::ledger::Over> {
        let incoming = Incoming::new(&peer.account)?;
        let slice = worker.scheduler.of(peer.account.owner);
        let credentials = worker.shared.classes.of_frames(peer.certificate.as_ref().map(|shown| &shown.digest));
        let handle = worker.connections.add(peer);
        let now = Instant::now();
        Ok(Self {
            wire: Some(wire),
            link: Link::new(&worker, &handle),
            incoming,
            outgoing: Outgoing::default(),
            patience: Patience::new(now, worker.shared.limits.slow_reader),
            timer: Box::pin(sleep_until(now + LONGEST_PAUSE)),
            pause: FIRST_PAUSE,
            leaves_until: None,
            goes_away_until: None,
            credentials,
            slice,
            handle,
            worker,
        })
    }

    /// Looks whether the connection should end now, or take its leave.
    fn look_for_end(&mut self, now: Instant) -> bool {
        let stage = self.worker.shared.stage();
        if stage >= Stage::Ending || self.handle.must_close.get() {
            self.handle.closed_here.set(true);
            if self.handle.must_close.get() {
                self.tell("it holds most of what waits for readers, and does not read");
            }
            return true;
        }
        if stage == Stage::Draining || self.link.must_end.get() {
            self.handle.closed_here.set(true);
            if self.leaves_until.is_none() && stage == Stage::Draining {
                self.goes_away_until = Some(now + GO_AWAY_TIME);
            }
            self.leave(now);
        }
        let checked = &self.handle.authorities_generation;
        let is_accepted = self.wire.as_ref().is_none_or(|wire| self.worker.shared.accepts(wire, checked));
        if self.leaves_until.is_none() && !is_accepted {
            self.handle.closed_here.set(true);
            self.tell("the client's certificate is no longer accepted");
            return true;
        }
        false
    }

    fn leave(&mut self, now: Instant) {
        self.leaves_until.get_or_insert(now + self.worker.shared.limits.linger);
    }

    fn tell(&self, problem: &str) {
        self.worker.shared.notices.tell(ENDED, &self.handle.peer.address, problem);
    }

    /// Reads and takes requests as long as its slice lasts. Returns how the connection ends, if its peer has ended it.
    fn poll_turn(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<End> {
        let (mut hits, mut left, mut read) = (HitClock::default(), HITS_PER_TURN, 0);
        let ended = loop {
            // Requests have to wait for earlier ones, or for the peer to read.
            if self.link.under_way() >= MAX_UNDER_WAY || self.outgoing.len() >= MAX_UNSENT {
                self.patience.pause(now);
                break None;
            }
            if left == 0 || read >= READ {
                cx.waker().wake_by_ref();
                break None;
            }
            match self.incoming.first() {
                Ok(Cut::Whole(frame)) => {
                    self.patience.frame_since = None;
                    if self.answer_go_away(&frame) || self.answer_from_cache(&frame, &mut hits) {
                        self.incoming.skip(&frame);
                        left -= 1;
                    } else if let Ok(taken) = self.incoming.take(&frame) {
                        self.ask(&frame, taken);
                        left = left.saturating_sub(OTHER_CALL);
                    } else {
                        self.wait_for_room(now);
                        break None;
                    }
                    continue;
                }
                Ok(Cut::Part) => drop(self.patience.frame_since.get_or_insert(now)),
                Ok(Cut::Nothing) => self.patience.frame_since = None,
                Err(problem) => {
                    self.tell(&problem);
                    self.goes_away_until = None;
                    self.leave(now);
                    break None;
                }
            }
            self.incoming.fit();
            match self.poll_read(cx, now) {
                Poll::Pending => break None,
                Poll::Ready(0) => break Some(End::Now),
                Poll::Ready(more) => read += more,
            }
        };
        hits.stop(&self.worker);
        ended
    }

    /// Reads what has arrived. 0: the peer has ended the connection. Pending also without memory.
    fn poll_read(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<usize> {
        let Ok(most) = self.incoming.may_read() else {
            self.wait_for_room(now);
            return Poll::Pending;
        };
        self.has_room();
        let Some(wire) = &mut self.wire else { return Poll::Ready(0) };
        let mut buffer = self.worker.read_buffer.borrow_mut();
        let mut came = ReadBuf::new(&mut buffer[..most]);
        if ready!(Pin::new(wire).poll_read(cx, &mut came)).is_err() {
            return Poll::Ready(0);
        }
        self.incoming.add(came.filled());
        if !came.filled().is_empty() {
            self.patience.active_at = now;
        }
        Poll::Ready(came.filled().len())
    }

    fn wait_for_room(&mut self, now: Instant) {
        self.patience.no_room_since.get_or_insert(now);
        self.patience.pause(now);
    }

    fn has_room(&mut self) {
        self.patience.no_room_since = None;
        self.pause = FIRST_PAUSE;
    }

    /// Answers a request that was answered before. Whether it did.
    fn answer_from_cache(&mut self, frame: &Frame, hits: &mut HitClock) -> bool {
        let (shared, bytes) = (&self.worker.shared, self.incoming.left());
        if frame.end > frame.header_end {
            return false;
        }
        let header = &bytes[PREFIX..frame.header_end];
        let Some(head) = Head::of(frame.encoding, header) else { return false };
        let method = shared.method_of_code(Some(head.code));
        if !shared.methods[usize::from(method)].cached {
            return false;
        }
        let Some(class) = shared.classes.class_of(self.credentials.as_ref()) else { return false };
        hits.begin();
        let found = {
            let mut key = self.worker.key.borrow_mut();
            key_into(&mut key, class, method, &[]);
            head.key_into(frame.encoding, header, &mut *key);
            shared.cache.find(&key)
        };
        let Some(Answer::Frame(answer)) = found.map(|hit| hit.answer) else { return false };
        answer.write(head.opaque, &mut self.outgoing);
        shared.hits[usize::from(method)].count(answer.is_absence);
        hits.hit(method);
        true
    }

    /// Tells a request that the server ends. Whether it does.
    fn answer_go_away(&mut self, frame: &Frame) -> bool {
        if self.goes_away_until.is_none() {
            return false;
        }
        if let Some(go_away) = self.worker.shared.go_away.get() {
            let header = &self.incoming.left()[PREFIX..frame.header_end];
            go_away.write(frame.encoding, header, &mut self.outgoing);
        }
        true
    }

    fn ask(&mut self, frame: &Frame, taken: Taken) {
        self.has_room();
        let shared = &self.worker.shared;
        let Taken { request, place, bytes, exceeding } = taken;
        let frame = FrameInfo { connection: self.link.id, encoding: frame.encoding, header: frame.header_end - PREFIX };
        let head = Head::of(frame.encoding, &request[..frame.header]);
        let method = shared.method_of_code(head.map(|head| head.code));
        // Requests of one connection that change something are made in their order.
        let in_order = self.link.under_way() == 0;
        let known = if in_order { self.number_of(method, &frame, &request) } else { None };
        let info = CallInfo {
            id: self.worker.call_id(),
            method,
            headers: http::HeaderMap::new(),
            frame: Some(frame),
            peer: Arc::clone(&self.handle.peer),
            credentials: self.credentials.clone(),
            known,
            generation: shared.permits_generation(),
            body: Body::of(Some(request), bytes),
        };
        self.link.ask(info, (place, exceeding));
    }

    /// The number by which Python knows a request.
    fn number_of(&self, method: u16, frame: &FrameInfo, request: &[u8]) -> Option<u64> {
        let shared = &self.worker.shared;
        shared.methods[usize::from(method)].requests.as_ref().filter(|requests| requests.may_be_known)?;
        let ((key, body), mut buffer) = (frame.known_key(request)?, self.worker.key.borrow_mut());
        shared.known.number_of(&mut buffer, method, self.credentials.as_ref(), &key, body)
    }

    /// Sends what waits, and looks at the time. Returns how the connection ends.
    fn poll_rest(&mut self, cx: &mut Context<'_>, now: Instant) -> Option<End> {
        let wire = self.wire.as_mut()?;
        let left = self.outgoing.poll_leave(wire, cx);
        if matches!(left, Poll::Ready(Err(_))) {
            return Some(End::Now);
        }
        match (left.is_ready(), self.patience.unsent_since) {
            (true, Some(_)) => {
                self.patience.unsent_since = None;
                self.patience.pause(now);
                cx.waker().wake_by_ref(); // to read on
            }
            (false, None) => self.patience.unsent_since = Some(now),
            _ => {}
        }
        self.handle.waiting.set_unsent(self.outgoing.len());
        self.worker.connections.check_waiting(&self.handle);
        if let Some(until) = self.leaves_until {
            let is_done = left.is_ready() && (self.link.under_way() == 0 || self.link.must_end.get());
            let stays_until = self.goes_away_until.filter(|until| is_done && now < *until);
            return match stays_until {
                None if is_done || now >= until => Some(End::Politely),
                _ => self.look_again(cx, stays_until.unwrap_or(until)),
            };
        }
        self.patience.is_busy = self.link.under_way() > 0;
        match self.patience.next(now) {
            Ok(next) => self.look_again(cx, next),
            Err(problem) => {
                self.handle.closed_here.set(false);
                self.tell(problem);
                Some(End::Now)
            }
        }
    }

    /// Has the connection be polled at that time or earlier.
    fn look_again(&mut self, cx: &mut Context<'_>, mut next: Instant) -> Option<End> {
        if self.patience.no_room_since.is_some() {
            next = next.min(Instant::now() + self.pause);
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
        if self.timer.is_elapsed() || next < self.timer.deadline() {
            self.timer.as_mut().reset(next);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        None
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.worker.shared.counts.remoting_connections.fetch_sub(1, Ordering::Relaxed);
        self.link.end();
        self.worker.remove_connection(&self.handle);
    }
}

impl Future for Connection {
    /// The connection, if its peer should read what it was told before it ends.
    type Output = Option<Wire>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Wire>> {
        let this = self.get_mut();
        ready!(this.handle.poll_slice(cx, &mut this.slice, &this.timer));
        let now = this.slice.began;
        if this.look_for_end(now) {
            return Poll::Ready(None);
        }
        this.outgoing.append(this.link.answers.take());
        let reads = this.leaves_until.is_none() || this.goes_away_until.is_some();
        let mut end = if reads { this.poll_turn(cx, now) } else { None };
        end = end.or(this.poll_rest(cx, now));
        match end {
            None => {
                this.slice.end();
                Poll::Pending
            }
            Some(End::Now) => Poll::Ready(None),
            Some(End::Politely) => Poll::Ready(this.wire.take()),
        }
    }
}
