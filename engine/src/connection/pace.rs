//! How much of a connection is read in one poll, how many frames of control it may send, and when bytes leave.
//!
//! Frames that carry no call (SETTINGS, PING, `WINDOW_UPDATE`, `RST_STREAM`, tiny DATA, ...) cost time and bring nothing. A
//! connection has a budget of them, which grows with time, with its calls, and with what is written to it. Beyond it is
//! read no faster than the budget grows: nothing is refused, and others run. A connection that continues for seconds is closed.
//! Fields of a call beyond those of any honest one count as frames of control: each is a byte that HPACK unpacks.
//!
//! Bytes that are written in a poll leave at its end in one write, and with TLS as one record. HTTP/2 by itself writes each
//! answer when it is asked for the next call, and the trailers of a larger one apart. A write costs more than all else that a
//! hit does.

use std::cell::{RefCell, RefMut};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::connection::scan::{ErrorScan, FrameScan, ReportedError};
use crate::outgoing::Outgoing;
use crate::wire::PREFACE;

/// After so many calls, the connection yields. It accepts every call before: until then, nothing counts the memory of a call.
const CALLS_PER_TURN: u32 = 32;

/// Fields that a call may have for nothing.
const PLAIN_FIELDS: usize = 64;

/// What a call costs that HTTP/2 itself answers, such as one with too large fields, in frames of control.
const REFUSED_BLOCK: u32 = 32;

/// After so many frames of control, the connection yields.
const CONTROL_PER_TURN: u32 = 64;

/// After so many bytes, the connection yields.
const BYTES_PER_TURN: usize = 64 << 10;

/// How long a connection may send more than its budget without a pause.
const MAX_FLOOD: Duration = Duration::from_secs(5);

/// Frames of control a second, beyond those that are earned. Honest clients send a few for each call.
const RATE: u32 = 2_000;

/// Frames of control that may come at once.
const BURST: u32 = 4_000;

/// Frames of control that a call earns.
const PER_CALL: f64 = 4.0;

/// Bytes that are written for each frame of control that is earned: readers answer a few KiB with a `WINDOW_UPDATE`.
const BYTES_PER_FRAME: f64 = 2_048.0;

/// Bytes that are gathered at most: what fills a record of TLS. A larger write is not copied.
const FULL: usize = 16 << 10;

/// The frames of control that a connection may send.
#[derive(Debug)]
struct Budget {
    left: f64,
    at: Instant,
    /// Frames of control that calls and written bytes have earned since.
    earned: f64,
}

/// A connection that is read in polls and within its budget, and written to in polls. HTTP/2 has it, and what polls HTTP/2.
#[derive(Debug)]
pub(crate) struct Paced<T>(Rc<RefCell<Pace<T>>>);

/// The state of such a connection.
#[derive(Debug)]
pub(crate) struct Pace<T> {
    /// The connection itself.
    pub(crate) inner: T,
    /// Bytes that have been written and have not left. Before the first poll, each write leaves at once.
    outgoing: Outgoing,
    /// Between the beginning of a poll and its end.
    in_turn: bool,
    /// When something was last read.
    pub(crate) read_at: Instant,
    /// Errors that were reported to the client and are still to be counted.
    pub(crate) errors: Vec<ReportedError>,
    /// Whether a bound has kept bytes from being read.
    pub(crate) withheld: bool,
    /// Fields of calls beyond `PLAIN_FIELDS` each, which are still to be paid for.
    fields: u32,
    /// Calls that have begun and that are not accepted.
    begun: u32,
    /// Calls that have begun in this poll.
    calls: u32,
    /// The preface, which has been read already and is to be read again.
    preface: &'static [u8],
    scan: FrameScan,
    budget: Budget,
    /// Frames of control, or work like them, since the connection yielded.
    control: u32,
    bytes: usize,
    /// Whether no more is read in this poll.
    over: bool,
    flooded_since: Option<Instant>,
    pause: Option<Pin<Box<Sleep>>>,
    /// What has been read and waits for the next poll.
    held_back: Bytes,
    error_scan: ErrorScan,
}

impl<T> Paced<T> {
    /// Around a connection whose preface has been read already.
    pub(crate) fn new(inner: T) -> Self {
        let now = Instant::now();
        Self(Rc::new(RefCell::new(Pace {
            inner,
            outgoing: Outgoing::default(),
            in_turn: false,
            read_at: now,
            errors: Vec::new(),
            withheld: false,
            fields: 0,
            begun: 0,
            calls: 0,
            preface: PREFACE,
            scan: FrameScan::default(),
            budget: Budget { left: f64::from(BURST), at: now, earned: 0.0 },
            control: 0,
            bytes: 0,
            over: false,
            flooded_since: None,
            pause: None,
            held_back: Bytes::new(),
            error_scan: ErrorScan::default(),
        })))
    }

    /// The same connection.
    pub(crate) fn same(&self) -> Self {
        Self(Rc::clone(&self.0))
    }

    pub(crate) fn state(&self) -> RefMut<'_, Pace<T>> {
        self.0.borrow_mut()
    }
}

impl<T> Pace<T> {
    /// The next poll of the connection begins: it may read, and begin what it has read, several times in one.
    pub(crate) fn begin_turn(&mut self) {
        (self.in_turn, self.over, self.calls, self.withheld) = (true, false, 0, false);
    }

    /// A call was accepted that has so many fields.
    pub(crate) fn call_has(&mut self, fields: usize) {
        self.begun = self.begun.saturating_sub(1);
        let more = u32::try_from(fields.saturating_sub(PLAIN_FIELDS)).unwrap_or(u32::MAX);
        self.fields = self.fields.saturating_add(more);
    }

    /// All calls have been accepted but those that HTTP/2 itself has answered. One more may be incomplete.
    pub(crate) fn all_accepted(&mut self) {
        let answered = self.begun.saturating_sub(1);
        self.begun -= answered;
        self.fields = self.fields.saturating_add(answered.saturating_mul(REFUSED_BLOCK));
    }

    /// Whether it has sent more frames of control than its budget for too long.
    pub(crate) fn is_flood(&self) -> bool {
        self.flooded_since.is_some_and(|since| self.budget.at - since > MAX_FLOOD)
    }

    /// Bytes that have been written and have not left.
    pub(crate) fn unsent(&self) -> usize {
        self.outgoing.len()
    }

    fn next_turn(&mut self) {
        (self.control, self.bytes) = (0, 0);
    }

    /// How many of the bytes may be passed on.
    fn came(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0; // no byte arrived, so nothing says that the peer is alive
        }
        let (control, calls) = (CONTROL_PER_TURN.saturating_sub(self.control), CALLS_PER_TURN - self.calls);
        let seen = self.scan.scan(bytes, control, calls);
        self.calls += seen.calls;
        self.begun += seen.calls;
        self.control += seen.turn;
        self.bytes += seen.bytes;
        self.read_at = Instant::now();
        self.budget.earned += f64::from(seen.calls) * PER_CALL;
        self.pay(seen.control);
        seen.bytes
    }

    /// Pays for frames of control, and has a pause follow where the budget is spent.
    fn pay(&mut self, control: u32) {
        if control == 0 {
            return;
        }
        let (now, budget) = (Instant::now(), &mut self.budget);
        let grown = (now - budget.at).as_secs_f64() * f64::from(RATE) + std::mem::take(&mut budget.earned);
        budget.left = (budget.left + grown - f64::from(control)).min(f64::from(BURST));
        budget.at = now;
        let debt = (budget.left < 0.0).then(|| Duration::from_secs_f64(-budget.left / f64::from(RATE)));
        self.pause = debt.map(|debt| Box::pin(tokio::time::sleep(debt)));
        if self.pause.is_some() {
            self.flooded_since.get_or_insert(now);
        } else if budget.left > f64::from(CONTROL_PER_TURN) {
            self.flooded_since = None;
        }
    }
}

impl<T: AsyncRead + Unpin> Pace<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.preface.is_empty() {
            buffer.put_slice(std::mem::take(&mut self.preface));
            return Poll::Ready(Ok(()));
        }
        let fields = std::mem::take(&mut self.fields);
        self.pay(fields);
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(cx).is_pending() {
                self.withheld = true;
                return Poll::Pending;
            }
            self.pause = None;
        }
        if self.control >= CONTROL_PER_TURN || self.bytes >= BYTES_PER_TURN || self.calls >= CALLS_PER_TURN {
            self.next_turn();
            (self.over, self.withheld) = (true, true);
            cx.waker().wake_by_ref();
        }
        if self.over {
            return Poll::Pending;
        }
        let polled = self.poll_bytes(cx, buffer);
        if polled.is_pending() && self.held_back.is_empty() {
            self.next_turn();
        }
        polled
    }

    /// Reads as far as frames may begin, and holds the rest back.
    fn poll_bytes(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.held_back.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
            let came = &buffer.filled()[before..];
            let passed = self.came(came);
            self.held_back = Bytes::copy_from_slice(&came[passed..]);
            buffer.set_filled(before + passed);
        } else {
            let mut back = std::mem::take(&mut self.held_back);
            let passed = self.came(&back[..back.len().min(buffer.remaining())]);
            buffer.put_slice(&back[..passed]);
            back.advance(passed);
            if !back.is_empty() {
                self.held_back = back; // an empty one would keep the memory of all
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> Pace<T> {
    /// Ends a poll. Ready when all that was written in it has left; pending if the peer does not take it now.
    pub(crate) fn poll_end_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.in_turn = false;
        self.poll_flush(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.in_turn { Poll::Ready(Ok(())) } else { self.outgoing.poll_leave(&mut self.inner, cx) }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if self.outgoing.len() + length > FULL || !self.in_turn {
            ready!(self.outgoing.poll_leave(&mut self.inner, cx))?;
        }
        let written = if length > FULL || !self.in_turn {
            ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, pieces))?
        } else {
            for piece in pieces {
                self.outgoing.extend(piece);
            }
            length
        };
        self.budget.earned += f64::from(u32::try_from(written).unwrap_or(u32::MAX)) / BYTES_PER_FRAME;
        let mut left = written;
        for piece in pieces {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            self.error_scan.scan(piece, &mut self.errors);
        }
        Poll::Ready(Ok(written))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.state().poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.state().poll_write(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.state().poll_write(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        ready!(state.poll_end_turn(cx))?;
        Pin::new(&mut state.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::scan::tests::frame;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    /// The connection of a client that has sent bytes and closed its side.
    async fn having_sent(bytes: &[u8]) -> Paced<DuplexStream> {
        let (mut client, server) = duplex(4 << 20);
        client.write_all(bytes).await.expect("room");
        Paced::new(server)
    }

    /// Reads to the end, accepts calls of so many fields and counts polls as a connection does. Returns the seconds it took.
    async fn read_in_turns(paced: &Paced<DuplexStream>, fields: usize) -> f64 {
        let (begun, mut reader, mut all) = (Instant::now(), paced.same(), Vec::new());
        let mut reading = std::pin::pin!(reader.read_to_end(&mut all));
        let read = std::future::poll_fn(|cx| {
            paced.state().begin_turn();
            let polled = reading.as_mut().poll(cx);
            while paced.state().begun > 0 {
                paced.state().call_has(fields);
            }
            polled
        });
        read.await.expect("reads");
        begun.elapsed().as_secs_f64()
    }

    /// Reads all that it may in each of some polls. Returns how many bytes were read in each, and how many calls began.
    async fn read_turns(paced: &mut Paced<DuplexStream>, turns: usize) -> Vec<(usize, u32)> {
        let (mut all, mut buffer) = (Vec::new(), [0; 64]);
        for _ in 0..turns {
            paced.state().begin_turn();
            let mut came = 0;
            while let Ok(Ok(more @ 1..)) = timeout(Duration::ZERO, paced.read(&mut buffer)).await {
                came += more;
            }
            all.push((came, std::mem::take(&mut paced.state().begun)));
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_turn_is_over_nothing_more_is_read_in_it() {
        let turns = read_turns(&mut having_sent(&PING.repeat(1_000)).await, 2).await;
        let most = CONTROL_PER_TURN as usize * PING.len() + 64 + PREFACE.len();
        assert!(turns.iter().all(|(came, _)| (1..=most).contains(came)), "{turns:?}");
        let calls: Vec<u8> = (1..200).step_by(2).flat_map(|stream| frame(1, 5, stream, 40)).collect();
        let begun = read_turns(&mut having_sent(&calls).await, 4).await.into_iter().map(|(_, calls)| calls);
        assert_eq!(begun.collect::<Vec<_>>(), [32, 32, 32, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_as_fast_as_its_budget_grows_and_told_if_it_goes_on() {
        for (seconds, told) in [(4, false), (7, true)] {
            let paced = having_sent(&PING.repeat((BURST + seconds * RATE) as usize)).await;
            let took = read_in_turns(&paced, 0).await;
            assert!((took - f64::from(seconds)).abs() < 0.6, "{took}");
            assert_eq!(paced.state().is_flood(), told, "{seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_with_a_few_frames_of_control_each_are_never_held_up() {
        let call =
            |stream| [frame(1, 4, stream, 40), frame(0, 1, stream, 30), PING.to_vec(), frame(8, 0, 0, 4)].concat();
        let calls: Vec<u8> = (1..40_001).step_by(2).flat_map(call).collect();
        let took = read_in_turns(&having_sent(&calls).await, 64).await;
        assert!(took < 0.05, "{took}");
    }

    /// A peer that takes all, and has each write apart.
    #[derive(Debug, Default)]
    struct Writes(Vec<Vec<u8>>);

    impl AsyncWrite for Writes {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.0.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Ends a poll, once all has left.
    async fn end_turn<T: AsyncWrite + Unpin>(paced: &Paced<T>) {
        std::future::poll_fn(|cx| paced.state().poll_end_turn(cx)).await.expect("open");
    }

    #[tokio::test]
    async fn all_that_is_written_and_flushed_in_a_turn_leaves_in_one_write_at_its_end() {
        let mut paced = Paced::new(Writes::default());
        for answer in 0..8_u8 {
            paced.state().begin_turn();
            let body = [answer; 300];
            let head_and_body = [io::IoSlice::new(b"head"), io::IoSlice::new(&body)];
            assert_eq!(paced.write_vectored(&head_and_body).await.expect("open"), 304);
            paced.flush().await.expect("open");
            paced.write_all(b"trailers").await.expect("open");
            paced.flush().await.expect("open");
        }
        assert!(paced.state().inner.0.is_empty());
        assert_eq!(paced.state().unsent(), 8 * 312);
        end_turn(&paced).await;
        assert_eq!(paced.state().inner.0.iter().map(Vec::len).collect::<Vec<_>>(), [8 * 312]);
        assert_eq!(paced.state().unsent(), 0);
    }

    proptest! {
        #[test]
        fn the_peer_gets_all_in_its_order_however_little_it_takes(
            lengths in proptest::collection::vec((1_usize..40_000, any::<bool>()), 1..20),
            takes in 1_usize..30_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("memory");
            runtime.block_on(async {
                let (server, mut client) = duplex(takes);
                let (mut paced, mut expected, mut came) = (Paced::new(server), Vec::new(), Vec::new());
                let writing = async {
                    for (number, (length, ends)) in (0_u8..).zip(lengths) {
                        let bytes = vec![number; length];
                        paced.state().begin_turn();
                        paced.write_all(&bytes).await.expect("open");
                        expected.extend(bytes);
                        assert!(paced.state().unsent() <= FULL);
                        if ends {
                            end_turn(&paced).await;
                            assert_eq!(paced.state().unsent(), 0);
                        }
                    }
                    paced.shutdown().await.expect("open");
                };
                let (read, ()) = tokio::join!(client.read_to_end(&mut came), writing);
                read.expect("open");
                assert_eq!(came, expected);
            });
        }
    }
}
