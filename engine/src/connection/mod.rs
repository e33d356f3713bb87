//! One connection: its preface, its polls, its keepalive, its end.

pub(crate) mod keepalive;
pub(crate) mod pace;
pub(crate) mod scan;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::server::Builder;
use h2::{Ping, PingPong, Reason};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::accept::Accepted;
use crate::accept::mistakes::{Carrier, TELLING, begins_tls, is_http_1, of_greeting};
use crate::call;
use crate::connection::keepalive::{Keepalive, Next};
use crate::connection::pace::{Pace, Paced};
use crate::connections::ConnectionHandle;
use crate::grpc::payload::Payload;
use crate::peer::Peer;
use crate::scheduler::Slice;
use crate::shared::Stage;
use crate::wire::{PREFACE, Wire};
use crate::worker::Worker;

/// Window of a stream: a client may send so much of a request before any of it is read.
const STREAM_WINDOW: u32 = 256 << 10;

/// Window of a connection.
const CONNECTION_WINDOW: u32 = 1 << 20;

/// Largest frame that is taken.
const MAX_FRAME: u32 = 16_384;

/// What HTTP/2 itself refuses of metadata; below, a call is told what is wrong with it.
const METADATA_FACTOR: usize = 2;

/// Full sets of calls that a client may cancel before we look at them, as `max_cancels` has it within a keepalive time.
const CANCELLED_SETS: usize = 2;

/// Calls that are reset in the life of a connection for errors of its client, which proxies keep open for weeks. They count as
/// cancelled, too, within a keepalive time.
const MAX_RESETS: usize = 1 << 16;

/// The cost of a call that is no hit, for its task, nanoseconds.
const TASK_COST: u64 = 10_000;

/// How long a client that speaks something else is listened to, and how much, so that it can read why it is turned away.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);
const MAX_UNREAD: u64 = 64 << 10;

const HTTP_1_ANSWER: &[u8] =
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\ncontent-length: 46\r\n\
    connection: close\r\n\r\nThis port speaks gRPC, which is HTTP/2, alone\n";

/// What clients of TLS know for sure as no TLS, and name in their error: empty SETTINGS, as HTTP/2 would begin.
const PLAIN_ANSWER: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// Serves a connection to its end.
pub(crate) async fn serve(worker: Rc<Worker>, arrived: Accepted) {
    let Accepted { wire, peer, place: _place, carrier, .. } = arrived;
    let Ok(mut wire) = wire.attach() else { return };
    let patience = worker.shared.limits.handshake_timeout;
    let mut came = Vec::with_capacity(PREFACE.len());
    let greeting = read_greeting(&mut wire, &mut came);
    let read = timeout(if carrier.may_carry() { patience } else { FAREWELL }, greeting).await;
    if !carrier.may_carry() || came != PREFACE {
        return turn_away(&worker, wire, &peer, came, read.is_ok(), carrier).await;
    }
    let pace = Paced::new(wire);
    let mut slice = worker.scheduler.of(peer.account.owner);
    let Ok(Ok(mut http2)) = slice.run(timeout(patience, builder(&worker).handshake(pace.same()))).await else { return };
    let handle = worker.connections.add(peer);
    let limits = &worker.shared.limits;
    let connection = Connection {
        pings: http2.ping_pong(),
        http2,
        pace,
        worker: Rc::clone(&worker),
        handle,
        keepalive: Keepalive::new(limits.keepalive, limits.keepalive_timeout),
        keepalive_timer: Box::pin(sleep(limits.keepalive)),
        draining: false,
        closing: false,
        slice,
    };
    connection.await;
    worker.connections.report();
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
        .max_pending_accept_reset_streams(CANCELLED_SETS * limits.max_streams as usize)
        .max_local_error_reset_streams(Some(MAX_RESETS))
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
    let _ = timeout(FAREWELL, wire.write_all(answer)).await; // fails if the client has left
    goodbye(wire).await;
}

/// Ends a connection, and reads on for a while: unread bytes would make the system reset the connection, and the client lose
/// the server's answer.
pub(crate) async fn goodbye(mut wire: Wire) {
    let goodbye = async {
        wire.shutdown().await?;
        tokio::io::copy(&mut wire.take(MAX_UNREAD), &mut tokio::io::sink()).await
    };
    let _ = timeout(FAREWELL, goodbye).await;
}

struct Connection {
    http2: h2::server::Connection<Paced<Wire>, Payload>,
    pace: Paced<Wire>,
    worker: Rc<Worker>,
    handle: Rc<ConnectionHandle>,
    keepalive: Keepalive,
    keepalive_timer: Pin<Box<Sleep>>,
    pings: Option<PingPong>,
    draining: bool,
    closing: bool,
    /// The last field, so that its last slice ends once all else is freed.
    slice: Slice,
}

impl Connection {
    /// Looks whether the connection should go. Returns whether it must end now.
    fn poll_end(&mut self) -> bool {
        let shared = &self.worker.shared;
        let stage = shared.stage();
        if stage == Stage::Leaving {
            self.handle.closed_here.set(true);
            return true;
        }
        if !self.closing {
            if self.handle.must_close.get() {
                let text = "a connection holds most of what waits for readers, and is closed";
                shared.notices.tell("reads_nothing", &self.handle.peer.address, text);
                return true; // what it holds must be given back, whether or not it reads a GOAWAY
            }
            let is_flood = self.pace.state().is_flood();
            let mut reason = (stage == Stage::Ending).then_some(Reason::NO_ERROR);
            for (is_so, count, kind, text) in [
                (
                    self.handle.cancels.get() > shared.limits.max_cancels,
                    &shared.counts.closed_for_cancels,
                    "too_many_cancels",
                    "a connection that cancels most of its calls is closed",
                ),
                (
                    is_flood,
                    &shared.counts.closed_for_floods,
                    "too_many_frames_of_control",
                    "a connection that sends little but SETTINGS, PING and the like is closed",
                ),
            ] {
                if is_so {
                    count.fetch_add(1, Ordering::Relaxed);
                    shared.notices.tell(kind, &self.handle.peer.address, text);
                    reason = Some(Reason::ENHANCE_YOUR_CALM);
                }
            }
            if let Some(reason) = reason {
                self.closing = true;
                self.handle.closed_here.set(true);
                self.http2.abrupt_shutdown(reason);
            }
        }
        self.check_certificate();
        if !self.draining && (stage >= Stage::Draining || self.handle.is_refused.get()) {
            self.draining = true;
            self.http2.graceful_shutdown();
        }
        false
    }

    /// Looks whether the authorities in force accept the certificate that the client showed.
    fn check_certificate(&mut self) {
        if self.worker.shared.accepts(&self.pace.state().inner, &self.handle.authorities_generation) {
            return;
        }
        self.worker.refuse(&self.handle);
        let text = "the client's certificate is no longer accepted; its calls end, and then its connection";
        self.worker.shared.notices.tell("client_certificate_revoked", &self.handle.peer.address, text);
    }

    /// Counts and logs the HTTP/2 errors that were reported to the client.
    fn count_errors(&self) {
        let errors = std::mem::take(&mut self.pace.state().errors);
        for error in errors {
            self.handle.count_cancel();
            let reason = self.worker.shared.http2_errors.count(error.reason);
            let what = if error.of_connection { "a connection is closed" } else { "a call is reset" };
            let text = format!("{what} with {reason:?} (RFC 9113, 7): {}", error.reason.description());
            self.worker.shared.notices.tell("http2_error", &self.handle.peer.address, &text);
        }
    }

    /// Pings a silent peer. Returns whether the peer is dead.
    fn poll_keepalive(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(pings) = &mut self.pings {
            let _ = pings.poll_pong(cx); // every byte counts as an answer; this only allows the next ping
        }
        while self.keepalive_timer.as_mut().poll(cx).is_ready() {
            self.handle.cancels.set(0);
            let Pace { read_at, withheld, .. } = *self.pace.state();
            let at = match self.keepalive.next(Instant::now(), read_at, withheld) {
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
        loop {
            match self.http2.poll_accept(cx) {
                Poll::Pending => {
                    self.pace.state().all_accepted();
                    hits.stop(&self.worker);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.pace.state().call_has(request.headers().len());
                    let before = hits.count;
                    call::begin(&self.worker, &self.handle, request, respond, &mut hits, cx);
                    if hits.count == before {
                        self.slice.charge(TASK_COST);
                    }
                }
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.worker.remove_connection(&self.handle);
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        ready!(this.handle.poll_slice(cx, &mut this.slice, &this.keepalive_timer));
        this.pace.state().begin_turn();
        if this.poll_end() {
            return Poll::Ready(());
        }
        let polled = this.poll_turn(cx);
        this.count_errors();
        let left = this.pace.state().poll_end_turn(cx);
        if left.is_ready() {
            this.handle.waiting.statuses.set(0);
        }
        this.handle.waiting.set_unsent(this.pace.state().unsent() + this.handle.waiting.statuses.get());
        this.worker.connections.check_waiting(&this.handle);
        let failed = matches!(left, Poll::Ready(Err(_)));
        // Reading comes before judging: the peer may have answered while we were late.
        if failed || polled.is_ready() || this.poll_keepalive(cx) {
            return Poll::Ready(());
        }
        this.slice.end();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::Door;
    use crate::bridge::{Cause, Event};
    use crate::connections::LATE;
    use crate::ledger::Kind;
    use crate::limits::Limits;
    use crate::peer::Owner;
    use crate::shared::{Method, Shared};
    use crate::wire::MovingWire;
    use std::sync::Arc;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::{LocalSet, spawn_local, yield_now};
    use tokio_util::either::Either;

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: u8 = 6;
    const SLOW: &str = "/a.B/Slow";
    const PATIENCE: Duration = Duration::from_secs(20);

    fn shared(limits: Limits) -> Arc<Shared> {
        Shared::of(limits, vec![Method { path: SLOW.into(), max_message: 9, ..Method::default() }])
    }

    fn impatient() -> Limits {
        let (keepalive, keepalive_timeout) = (Duration::from_millis(20), Duration::from_millis(20));
        Limits { keepalive, keepalive_timeout, ..Limits::default() }
    }

    /// Runs a client and the worker that serves it on one thread: while the test sleeps, the worker is late.
    fn beside_a_worker<F: Future<Output = ()>>(shared: &Arc<Shared>, test: impl FnOnce(TcpStream) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("descriptors");
        let worker = Worker::new(Arc::clone(shared), 0);
        let scheduler = Rc::clone(&worker.scheduler);
        let served = async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connects");
            let (stream, address) = listener.accept().await.expect("accepts");
            let account = shared.ledger.account(Owner::of(address, true));
            let place = account.hold(Kind::Connections, 1).expect("a place");
            let wire = MovingWire::detach(Wire::Left(Either::Left(stream))).expect("a socket");
            let peer = Peer::of(address, account, Door::Grpc);
            spawn_local(serve(worker, Accepted { wire, peer, place, carrier: Carrier::Plain, door: Door::Grpc }));
            tokio::time::timeout(PATIENCE, test(client)).await.expect("what the test waits for");
        };
        LocalSet::new().block_on(&runtime, scheduler.drive(served));
    }

    /// The next PING with these flags. Panics if the connection ends before.
    async fn next_ping(client: &mut TcpStream, flags: u8) -> [u8; 8] {
        loop {
            let mut head = [0; 9];
            client.read_exact(&mut head).await.expect("open");
            let mut body = vec![0; usize::from(head[2])];
            client.read_exact(&mut body).await.expect("open");
            if head[3] == PING && head[4] == flags {
                return body.try_into().expect("eight bytes");
            }
        }
    }

    fn ping(flags: u8, body: [u8; 8]) -> Vec<u8> {
        [&[0, 0, 8, PING, flags, 0, 0, 0, 0], &body[..]].concat()
    }

    #[test]
    fn a_peer_whose_answer_came_while_we_were_late_stays() {
        beside_a_worker(&shared(impatient()), |mut client| async move {
            client.write_all(PREFACE).await.expect("room");
            client.write_all(&SETTINGS).await.expect("room");
            let asked = next_ping(&mut client, 0).await;
            client.write_all(&ping(1, asked)).await.expect("room");
            std::thread::sleep(Duration::from_millis(60)); // longer than it may take to answer
            client.write_all(&ping(0, [7; 8])).await.expect("room");
            assert_eq!(next_ping(&mut client, 1).await, [7; 8]);
        });
    }

    /// Why Python is told that a call ended, after the client or this server did something with the connection.
    fn cause_after(end: impl FnOnce(&Arc<Shared>, tokio::task::JoinHandle<()>)) -> Cause {
        let shared = shared(impatient());
        let told = std::cell::Cell::new(None);
        beside_a_worker(&shared, |client| async {
            let (mut calls, connection) = h2::client::handshake(client).await.expect("shakes hands");
            let connection = spawn_local(async move { drop(connection.await) });
            let request = http::Request::post(SLOW).header("content-type", "application/grpc").header("te", "trailers");
            let (answer, mut body) = calls.send_request(request.body(()).expect("a request"), false).expect("open");
            body.send_data(bytes::Bytes::from_static(&[0; 5]), true).expect("open");
            while shared.bridge.take(1).is_empty() {
                yield_now().await;
            }
            end(&shared, connection);
            while told.get().is_none() {
                if let Some(Event::Cancelled(_, cause)) = shared.bridge.take(1).pop() {
                    told.set(Some(cause));
                }
                yield_now().await;
            }
            drop(answer);
        });
        told.get().expect("told")
    }

    #[test]
    fn python_is_told_why_a_call_ended() {
        assert_eq!(cause_after(|_, connection| connection.abort()), Cause::Client);
        let late = cause_after(|_, connection| {
            std::thread::sleep(LATE + Duration::from_millis(100));
            connection.abort();
        });
        assert_eq!(late, Cause::ServedLate);
        let closed = cause_after(|shared, _| shared.set_stage(Stage::Ending));
        assert_eq!(closed, Cause::ClosedHere);
    }
}
