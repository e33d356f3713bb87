//! How much of a connection is read in one poll, and how many frames of control it may send.
//!
//! Frames that carry no call (SETTINGS, PING, `WINDOW_UPDATE`, `RST_STREAM`, tiny DATA, ...) cost time and bring nothing. A
//! connection has a budget of them, which grows with time, with its calls, and with what is written to it. Beyond it is
//! read no faster than the budget grows: nothing is refused, and others run. A connection that continues for seconds is closed.
//! Fields of a call beyond those of any honest one count as frames of control: each is a byte that HPACK unpacks.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::connection::budget::Budget;
use crate::connection::crossing::Crossing;
use crate::connection::errors::{ErrorScan, ReportedError};
use crate::connection::scan::FrameScan;
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

/// After so many frames of control in this poll or the one before, this much is read at a time, to end soon after the budget.
const CAREFUL_READ: usize = 1 << 10;
const CAREFUL_FROM: u32 = 8;

/// A connection that is read in polls, and within its budget.
#[derive(Debug)]
pub(crate) struct Paced<T> {
    inner: T,
    replay: bool,
    scan: FrameScan,
    budget: Budget,
    turn: u32,
    turn_bytes: usize,
    careful: bool,
    /// The poll in which no more is read.
    over: Option<u64>,
    flooded_since: Option<Instant>,
    pause: Option<Pin<Box<Sleep>>>,
    pace: Rc<PaceState>,
    /// What has been read and waits for the next poll.
    held_back: Bytes,
    /// From GOAWAY on, all bytes that are read go through this.
    crossing: Option<Crossing>,
    error_scan: ErrorScan,
}

/// The state that a connection and its paced reader share.
#[derive(Debug)]
pub(crate) struct PaceState {
    /// The poll of the connection: it may read, and begin what it has read, several times in one.
    pub(crate) turn: Cell<u64>,
    /// When something was last read.
    pub(crate) read_at: Cell<Instant>,
    /// It has sent more frames of control than its budget for too long.
    pub(crate) flood: Cell<bool>,
    /// The client is being told to go.
    pub(crate) farewell: Cell<bool>,
    /// Errors that were reported to the client and are still to be counted.
    pub(crate) errors: RefCell<Vec<ReportedError>>,
    /// Whether a bound has kept bytes from being read.
    pub(crate) withheld: Cell<bool>,
    /// Fields of calls beyond `PLAIN_FIELDS` each, which are still to be paid for.
    fields: Cell<u32>,
    /// Calls that have begun and that are not accepted.
    begun: Cell<u32>,
    /// Calls that have begun in this poll.
    calls: Cell<u32>,
}

impl PaceState {
    /// Of a connection that has said nothing yet.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            turn: Cell::default(),
            read_at: Cell::new(Instant::now()),
            flood: Cell::default(),
            farewell: Cell::default(),
            errors: RefCell::default(),
            withheld: Cell::default(),
            fields: Cell::default(),
            begun: Cell::default(),
            calls: Cell::default(),
        })
    }

    /// The next poll of the connection begins.
    pub(crate) fn begin_turn(&self) {
        self.turn.set(self.turn.get() + 1);
        self.calls.set(0);
        self.withheld.set(false);
    }

    /// Whether one more call may begin in this poll; counts it.
    fn begin(&self) -> bool {
        let may_begin = self.calls.get() < CALLS_PER_TURN;
        if may_begin {
            self.calls.set(self.calls.get() + 1);
            self.begun.set(self.begun.get() + 1);
        }
        may_begin
    }

    /// A call was accepted that has so many fields.
    pub(crate) fn call_has(&self, fields: usize) {
        self.begun.set(self.begun.get().saturating_sub(1));
        let more = u32::try_from(fields.saturating_sub(PLAIN_FIELDS)).unwrap_or(u32::MAX);
        self.fields.set(self.fields.get().saturating_add(more));
    }

    /// All calls have been accepted but those that HTTP/2 itself has answered. One more may be incomplete.
    pub(crate) fn all_accepted(&self) {
        let answered = self.begun.get().saturating_sub(1);
        if answered > 0 {
            self.begun.set(1);
            self.fields.set(self.fields.get().saturating_add(answered.saturating_mul(REFUSED_BLOCK)));
        }
    }
}

impl<T> Paced<T> {
    /// Around a connection whose preface has been read already.
    pub(crate) fn new(inner: T, pace: Rc<PaceState>) -> Self {
        Self {
            inner,
            replay: true,
            scan: FrameScan::default(),
            budget: Budget::new(Instant::now()),
            turn: 0,
            turn_bytes: 0,
            careful: false,
            over: None,
            flooded_since: None,
            pause: None,
            pace,
            held_back: Bytes::new(),
            crossing: None,
            error_scan: ErrorScan::default(),
        }
    }

    fn next_turn(&mut self) {
        self.careful = self.turn >= CAREFUL_FROM;
        self.turn = 0;
        self.turn_bytes = 0;
    }

    /// How many of the bytes may be passed on.
    fn came(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0; // no byte arrived, so nothing says that the peer is alive
        }
        let seen = self.scan.scan(bytes, || self.pace.begin());
        self.turn += seen.turn;
        self.turn_bytes += seen.bytes;
        self.pace.read_at.set(Instant::now());
        self.budget.called(seen.calls);
        self.pay(seen.control);
        seen.bytes
    }

    /// Pays for frames of control, and has a pause follow where the budget is spent.
    fn pay(&mut self, control: u32) {
        if control == 0 {
            return;
        }
        let now = Instant::now();
        self.budget.spend(control, now);
        let debt = self.budget.debt();
        self.pause = debt.map(|debt| Box::pin(tokio::time::sleep(debt)));
        if debt.is_some() {
            let since = *self.flooded_since.get_or_insert(now);
            self.pace.flood.set(now - since > MAX_FLOOD);
        } else if self.budget.has(CONTROL_PER_TURN) {
            self.flooded_since = None;
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Paced<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.replay {
            this.replay = false;
            buffer.put_slice(PREFACE);
            return Poll::Ready(Ok(()));
        }
        this.pay(this.pace.fields.take());
        if let Some(pause) = &mut this.pause {
            if pause.as_mut().poll(cx).is_pending() {
                this.pace.withheld.set(true);
                return Poll::Pending;
            }
            this.pause = None;
        }
        let turn = this.pace.turn.get();
        let calls = this.pace.calls.get();
        if this.turn >= CONTROL_PER_TURN || this.turn_bytes >= BYTES_PER_TURN || calls >= CALLS_PER_TURN {
            this.next_turn();
            this.over = Some(turn);
            this.pace.withheld.set(true);
            cx.waker().wake_by_ref();
        }
        if this.over == Some(turn) {
            return Poll::Pending;
        }
        if this.pace.farewell.get() {
            return this.poll_crossing(cx, buffer);
        }
        if this.careful || this.turn >= CAREFUL_FROM {
            let mut few = [0; CAREFUL_READ];
            let room = few.len().min(buffer.remaining());
            let mut part = ReadBuf::new(&mut few[..room]);
            let polled = this.poll_bytes(cx, &mut part);
            buffer.put_slice(part.filled());
            return this.or_next_turn(polled);
        }
        let polled = this.poll_bytes(cx, buffer);
        this.or_next_turn(polled)
    }
}

impl<T: AsyncRead + Unpin> Paced<T> {
    /// Reads as far as calls may begin, and holds the rest back.
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

    /// Reads, and leaves out what must be.
    fn poll_crossing(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut crossing = self.crossing.take().unwrap_or_else(|| Crossing::new(self.scan.frames, self.scan.highest));
        let mut polled = Poll::Ready(Ok(()));
        if crossing.out.is_empty() {
            let mut few = [0; CAREFUL_READ];
            let mut part = ReadBuf::new(&mut few);
            polled = self.poll_bytes(cx, &mut part);
            crossing.put(part.filled());
            if !part.filled().is_empty() && crossing.out.is_empty() {
                cx.waker().wake_by_ref(); // an empty answer would mean the end
                polled = Poll::Pending;
            }
        }
        let out = &mut crossing.out;
        let passed = out.len().min(buffer.remaining());
        buffer.put_slice(&out[..passed]);
        out.advance(passed);
        self.crossing = Some(crossing);
        self.or_next_turn(polled)
    }
}

impl<T> Paced<T> {
    /// So many bytes of these pieces have been written.
    fn wrote(&mut self, pieces: &[io::IoSlice<'_>], written: usize) {
        self.budget.wrote(written);
        let (mut left, mut errors) = (written, self.pace.errors.borrow_mut());
        for piece in pieces {
            let piece = &piece[..piece.len().min(left)];
            left -= piece.len();
            self.error_scan.scan(piece, &mut errors);
        }
    }

    fn or_next_turn(&mut self, polled: Poll<io::Result<()>>) -> Poll<io::Result<()>> {
        if polled.is_pending() && self.held_back.is_empty() {
            self.next_turn();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Paced<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        if let Poll::Ready(Ok(written)) = polled {
            self.wrote(pieces, written);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::budget::{BURST, RATE};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(length).expect("short").to_be_bytes();
        let mut frame = vec![high, middle, low, kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.resize(9 + length, 7);
        frame
    }

    /// Reads to the end, accepts calls and counts polls as a connection does.
    async fn read_in_turns(server: DuplexStream, pace: &Rc<PaceState>, all: &mut Vec<u8>) {
        let mut paced = Paced::new(server, Rc::clone(pace));
        let mut reading = std::pin::pin!(paced.read_to_end(all));
        let read = std::future::poll_fn(|cx| {
            pace.begin_turn();
            reading.as_mut().poll(cx)
        });
        read.await.expect("reads");
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_turn_is_over_nothing_more_is_read_in_it() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&PING.repeat(1_000)).await.expect("room");
        let pace = PaceState::new();
        let mut paced = Paced::new(server, Rc::clone(&pace));
        let mut turns = Vec::new();
        for _ in 0..2 {
            pace.begin_turn();
            let mut read = 0;
            let mut buffer = [0; 64];
            while let Ok(more) = tokio::time::timeout(Duration::ZERO, paced.read(&mut buffer)).await {
                read += more.expect("reads");
            }
            turns.push(read);
        }
        let most = CONTROL_PER_TURN as usize * PING.len() + 64 + PREFACE.len();
        assert!(turns.iter().all(|read| (1..=most).contains(read)), "{turns:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_pings_is_read_no_faster_than_its_budget_grows() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let seconds = 3;
        let pings = BURST + seconds * RATE;
        client.write_all(&PING.repeat(pings as usize)).await.expect("room");
        drop(client);
        let begun = Instant::now();
        let mut all = Vec::new();
        read_in_turns(server, &PaceState::new(), &mut all).await;
        assert_eq!(all.len(), PREFACE.len() + pings as usize * PING.len());
        let took = begun.elapsed().as_secs_f64();
        assert!((f64::from(seconds) - 0.6..f64::from(seconds) + 0.6).contains(&took), "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_that_goes_on_is_told_of_and_one_that_ends_in_time_is_not() {
        for (seconds, told) in [(4, false), (7, true)] {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            client.write_all(&PING.repeat((BURST + seconds * RATE) as usize)).await.expect("room");
            drop(client);
            let pace = PaceState::new();
            read_in_turns(server, &pace, &mut Vec::new()).await;
            assert_eq!(pace.flood.get(), told, "{seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_many_fields_are_read_no_faster_than_the_budget_grows_and_plain_ones_are() {
        for (fields, least) in [(PLAIN_FIELDS, 0.0), (PLAIN_FIELDS + 400, 2.7)] {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let pace = PaceState::new();
            let mut paced = Paced::new(server, Rc::clone(&pace));
            paced.read_exact(&mut [0; PREFACE.len()]).await.expect("reads");
            let begun = Instant::now();
            for turn in 0..25 {
                client.write_all(&frame(1, 5, 2 * turn + 1, 40)).await.expect("room");
                pace.begin_turn();
                paced.read_exact(&mut [0; 49]).await.expect("reads");
                pace.call_has(fields);
            }
            let took = begun.elapsed().as_secs_f64();
            assert!((least..least + 0.2).contains(&took), "{fields} fields: {took}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_calls_begin_in_a_turn_and_the_others_in_the_next_ones() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        for stream in (1..200).step_by(2) {
            client.write_all(&frame(1, 5, stream, 40)).await.expect("room");
        }
        let pace = PaceState::new();
        let mut paced = Paced::new(server, Rc::clone(&pace));
        let (mut begun, mut buffer) = (Vec::new(), [0; 8_192]);
        for _ in 0..4 {
            pace.begin_turn();
            while tokio::time::timeout(Duration::ZERO, paced.read(&mut buffer)).await.is_ok() {}
            begun.push(pace.begun.replace(0));
        }
        assert_eq!(begun, [32, 32, 32, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_bytes_that_are_read_count_as_life() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let pace = PaceState::new();
        let mut paced = Paced::new(server, Rc::clone(&pace));
        let mut preface = [0; PREFACE.len()];
        paced.read_exact(&mut preface).await.expect("reads");
        let begun = Instant::now();
        let mut byte = [0];
        tokio::time::timeout(Duration::from_secs(1), paced.read(&mut byte)).await.expect_err("nothing comes");
        assert_eq!(pace.read_at.get(), begun);
        client.write_all(&[1]).await.expect("room");
        paced.read_exact(&mut byte).await.expect("reads");
        assert_eq!(pace.read_at.get(), begun + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_with_a_few_frames_of_control_each_are_never_held_up() {
        let (mut client, server) = tokio::io::duplex(4 << 20);
        let call =
            |stream| [frame(1, 4, stream, 40), frame(0, 1, stream, 30), PING.to_vec(), frame(8, 0, 0, 4)].concat();
        let calls: Vec<u8> = (1..40_001).step_by(2).flat_map(call).collect();
        client.write_all(&calls).await.expect("room");
        drop(client);
        let begun = Instant::now();
        read_in_turns(server, &PaceState::new(), &mut Vec::new()).await;
        assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    }
}
