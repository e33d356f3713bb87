//! One connection: its preface, its turns, its keepalive, its end.

pub(crate) mod budget;
pub(crate) mod crossing;
pub(crate) mod errors;
pub(crate) mod gathered;
pub(crate) mod heavy;
pub(crate) mod keepalive;
pub(crate) mod pace;
pub(crate) mod scan;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::server::Builder;
use h2::{Ping, PingPong, Reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::accept::Accepted;
use crate::accept::mistakes::{Carrier, TELLING, begins_tls, is_http_1, of_greeting};
use crate::call;
use crate::connection::gathered::Gathered;
use crate::connection::keepalive::{Keepalive, Next};
use crate::connection::pace::{PaceState, Paced};
use crate::connections::ConnectionHandle;
use crate::grpc::payload::{Counted, Payload};
use crate::peer::Peer;
use crate::shared::Stage;
use crate::wire::{PREFACE, Wire};
use crate::worker::Worker;

/// Cached answers before other connections run.
const HITS_PER_TURN: usize = 64;

/// How many cached answers any other call counts as: it takes as long, and its own answer comes later.
const OTHER_CALL: usize = 8;

/// Window of a stream: a client may send so much of a request before any of it is read.
const STREAM_WINDOW: u32 = 256 << 10;

/// Window of a connection.
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Largest frame that is taken.
const MAX_FRAME: u32 = 16_384;

/// What HTTP/2 itself refuses of metadata; below, a call is told what is wrong with it.
const METADATA_FACTOR: usize = 2;

/// How long a client that speaks something else is listened to, and how much, so that it can read why it is turned away.
const FAREWELL: Duration = Duration::from_secs(1);
const MAX_UNREAD: u64 = 64 << 10;

const HTTP_1_ANSWER: &[u8] =
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\ncontent-length: 46\r\n\
    connection: close\r\n\r\nThis port speaks gRPC, which is HTTP/2, alone\n";

/// What clients of TLS know for sure as no TLS, and name in their error: empty SETTINGS, as HTTP/2 would begin.
const PLAIN_ANSWER: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Serves a connection to its end.
pub(crate) async fn serve(worker: Rc<Worker>, arrived: Accepted) {
    let Accepted { wire, peer, place: _place, carrier } = arrived;
    let Ok(mut wire) = wire.attach() else { return };
    let patience = worker.shared.limits.handshake_timeout;
    let mut came = Vec::with_capacity(PREFACE.len());
    let greeting = read_greeting(&mut wire, &mut came);
    let read = timeout(if carrier.may_carry() { patience } else { FAREWELL }, greeting).await;
    if !carrier.may_carry() || came != PREFACE {
        return turn_away(&worker, wire, &peer, came, read.is_ok(), carrier).await;
    }
    let Ok(turn) = worker.newcomers.acquire().await else { return };
    let pace = PaceState::new(&worker.heavy_turns);
    let wire = Gathered::new(wire, &worker.spare);
    let paced = Paced::new(wire.clone(), Rc::clone(&pace));
    let Ok(Ok(http2)) = timeout(patience, builder(&worker).handshake(paced)).await else { return };
    let registration =
        Registration { handle: worker.connections.add(peer.account.owner()), worker: Rc::clone(&worker) };
    let handle = Rc::clone(&registration.handle);
    let mut connection = Connection::new(http2, wire, Rc::clone(&worker), handle, Arc::new(peer), pace);
    let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut connection).poll(cx))).await;
    tokio::task::yield_now().await; // the calls that it brought have their turn, too
    drop(turn);
    if first.is_pending() {
        (&mut connection).await;
    }
    connection.pace.heavy.borrow_mut().leave_queue(); // it may wait for long before it is dropped
    // Thousands that end at once have so much to give back that others would wait for all of them.
    let turn = worker.leavers.acquire().await;
    drop(connection);
    drop(registration);
    tokio::task::yield_now().await;
    drop(turn);
}

/// A connection's place among those of its worker, which it leaves however its task ends.
struct Registration {
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.worker.remove_connection(&self.handle);
    }
}

fn builder(worker: &Worker) -> Builder {
    let limits = &worker.shared.limits;
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(u32::try_from(limits.max_metadata * METADATA_FACTOR).unwrap_or(u32::MAX))
        .header_table_size(4_096)
        .max_concurrent_streams(limits.max_streams)
        .max_concurrent_reset_streams(50)
        .reset_stream_duration(Duration::from_secs(1))
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(Some(256))
        .max_send_buffer_size(64 << 10);
    builder
}

/// Reads what every connection begins with, or so much that it is seen not to be that.
async fn read_greeting(wire: &mut Wire, came: &mut Vec<u8>) {
    let mut wire = wire.take(PREFACE.len() as u64);
    while PREFACE.starts_with(came) && wire.read_buf(came).await.is_ok_and(|more| more > 0) {}
}

/// Ends a connection that speaks something else, and says what it should.
async fn turn_away(worker: &Worker, mut wire: Wire, peer: &Peer, mut came: Vec<u8>, went: bool, carrier: Carrier) {
    if !PREFACE.starts_with(&came) && came.len() < TELLING {
        let mut more = (&mut wire).take((TELLING - came.len()) as u64);
        let _ = timeout(FAREWELL, more.read_to_end(&mut came)).await; // else that little must do
    }
    if let Some(mistake) = of_greeting(&came, went, carrier) {
        mistake.refuse(peer, &worker.shared);
    }
    let answer = match came.first() {
        Some(&byte) if begins_tls(byte) => PLAIN_ANSWER,
        _ if is_http_1(&came) => HTTP_1_ANSWER,
        _ => &[],
    };
    let _ = timeout(FAREWELL, wire.write_all(answer)).await; // whoever went needs no answer
    // What has not been read makes the system reset the connection, and the client lose our answer.
    let goodbye = async {
        wire.shutdown().await?;
        tokio::io::copy(&mut wire.take(MAX_UNREAD), &mut tokio::io::sink()).await
    };
    let _ = timeout(FAREWELL, goodbye).await;
}

/// What HTTP/2 reads from and writes to.
type Transport = Paced<Gathered<Wire>>;

struct Connection {
    http2: h2::server::Connection<Transport, Payload>,
    wire: Gathered<Wire>,
    /// What has been written and has not left.
    unsent: Counted,
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
    peer: Arc<Peer>,
    pace: Rc<PaceState>,
    keepalive: Keepalive,
    keepalive_timer: Pin<Box<Sleep>>,
    pings: Option<PingPong>,
    /// The generation of authorities under which the client's certificate was checked last.
    authorities_generation: u64,
    draining: bool,
    closing: bool,
}

impl Connection {
    fn new(
        mut http2: h2::server::Connection<Transport, Payload>,
        wire: Gathered<Wire>,
        worker: Rc<Worker>,
        handle: Rc<ConnectionHandle>,
        peer: Arc<Peer>,
        pace: Rc<PaceState>,
    ) -> Self {
        let limits = &worker.shared.limits;
        let keepalive = Keepalive::new(limits.keepalive, limits.keepalive_timeout);
        let keepalive_timer = Box::pin(sleep(limits.keepalive));
        let pings = http2.ping_pong();
        let authorities_generation = peer.authorities_generation;
        let unsent = Counted::new(&handle.waiting, 0);
        Self {
            http2,
            wire,
            unsent,
            worker,
            handle,
            peer,
            pace,
            keepalive,
            keepalive_timer,
            pings,
            authorities_generation,
            draining: false,
            closing: false,
        }
    }

    /// Looks whether the connection should go. Returns whether it must end now.
    fn poll_end(&mut self) -> bool {
        let shared = &self.worker.shared;
        let stage = shared.stage();
        if stage == Stage::Leaving {
            return true;
        }
        if !self.closing {
            let too_many_cancels = self.handle.cancels.get() > shared.limits.max_cancels;
            if too_many_cancels {
                shared.counts.closed_for_cancels.fetch_add(1, Ordering::Relaxed);
                shared.notices.tell(
                    "too_many_cancels",
                    &self.peer.address,
                    "a connection that cancels most of its calls is closed",
                );
            }
            if self.handle.must_close.get() {
                shared.notices.tell(
                    "reads_nothing",
                    &self.peer.address,
                    "a connection holds most of what waits for readers, and is closed",
                );
                return true; // what it holds must be given back, whether or not it reads a farewell
            }
            let flood = self.pace.flood.get();
            if flood {
                shared.counts.closed_for_floods.fetch_add(1, Ordering::Relaxed);
                let text = "a connection that sends little but SETTINGS, PING and the like is closed";
                shared.notices.tell("too_many_frames_of_control", &self.peer.address, text);
            }
            if too_many_cancels || flood {
                self.closing = true;
                self.http2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            } else if stage == Stage::Ending {
                self.closing = true;
                self.http2.abrupt_shutdown(Reason::NO_ERROR);
            }
        }
        self.check_certificate();
        if !self.draining && (stage >= Stage::Draining || self.handle.is_refused.get()) {
            self.draining = true;
            self.pace.farewell.set(true);
            self.http2.graceful_shutdown();
        }
        false
    }

    /// Looks whether the authorities in force accept the certificate that the client showed.
    fn check_certificate(&mut self) {
        let generation = self.worker.shared.authorities_generation();
        if generation == self.authorities_generation {
            return;
        }
        self.authorities_generation = generation;
        let tls = self.worker.shared.tls();
        if self.peer.chain.is_empty() || tls.is_none_or(|tls| tls.accepts(&self.peer.chain)) {
            return;
        }
        self.handle.is_refused.set(true);
        let text = "the client's certificate is no longer accepted; its calls end, and then its connection";
        self.worker.shared.notices.tell_of_peer("client_certificate_revoked", &self.peer.address, text);
    }

    /// Counts and logs the HTTP/2 errors that were reported to the client.
    fn count_errors(&self) {
        if self.pace.errors.borrow().is_empty() {
            return;
        }
        for error in self.pace.errors.take() {
            let reason = self.worker.shared.http2_errors.count(error.reason.into());
            let what = if error.of_connection { "a connection is closed" } else { "a call is reset" };
            let text = format!("{what} with {reason} (RFC 9113, 7): {}", error.reason.description());
            self.worker.shared.notices.tell_of_peer("http2_error", &self.peer.address, &text);
        }
    }

    /// Pings a silent peer. Returns whether the peer is dead.
    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(pings) = &mut self.pings {
            let _ = pings.poll_pong(cx); // every byte counts as an answer; this only makes place for the next ping
        }
        while self.keepalive_timer.as_mut().poll(cx).is_ready() {
            self.handle.cancels.set(0);
            let at = match self.keepalive.next(Instant::now(), self.pace.read_at.get()) {
                Next::Close => return true,
                Next::Wait(at) => at,
                Next::Ping(at) => {
                    if let Some(pings) = &mut self.pings {
                        let _ = pings.send_ping(Ping::opaque()); // fails only while another ping is on its way
                    }
                    at
                }
            };
            self.keepalive_timer.as_mut().reset(at);
        }
        false
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut hits = call::HitClock::default();
        let mut left = HITS_PER_TURN;
        while left > 0 {
            match self.http2.poll_accept(cx) {
                Poll::Pending => {
                    hits.stop(&self.worker);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.pace.call_has(request.headers().len());
                    let before = hits.count();
                    call::begin(&self.worker, &self.handle, &self.peer, request, respond, &mut hits, cx);
                    left = left.saturating_sub(if hits.count() > before { 1 } else { OTHER_CALL });
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
            }
        }
        hits.stop(&self.worker);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.handle.set_waker(cx.waker());
        this.pace.turn.set(this.pace.turn.get() + 1);
        if this.poll_end() || this.poll_keepalive(cx) {
            return Poll::Ready(());
        }
        this.wire.begin_turn();
        let polled = this.poll_turn(cx);
        this.count_errors();
        let left = this.wire.poll_end_turn(cx);
        this.unsent.set(this.wire.unsent());
        this.pace.heavy.borrow_mut().end();
        this.worker.connections.check_waiting(&this.handle);
        if let Poll::Ready(Err(_)) = left {
            return Poll::Ready(());
        }
        polled
    }
}
