//! How much of a connection is read in one poll, and how many frames of control it may send.
//!
//! Frames that carry no call (SETTINGS, PING, `WINDOW_UPDATE`, `RST_STREAM`, tiny DATA, ...) cost time and bring nothing. A
//! connection has a budget of them, which grows with time, with its calls, and with what is written to it. Beyond it is
//! read no faster than the budget grows: nothing is refused, and others run. A connection that continues for seconds is closed.
//! Fields of a call beyond those of any honest one count as frames of control: each is a byte that HPACK unpacks.

use std::cell::{RefCell, RefMut};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::connection::errors::{ErrorScan, ReportedError};
use crate::connection::gathered::Gathered;
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

/// Frames of control a second, beyond those that are earned. Honest clients send a few for each call.
const RATE: u32 = 2_000;

/// Frames of control that may come at once.
const BURST: u32 = 4_000;

/// Frames of control that a call earns.
const PER_CALL: u32 = 4;

/// Bytes that are written for each frame of control that is earned: readers answer a few KiB with a `WINDOW_UPDATE`.
const BYTES_PER_FRAME: usize = 2 << 10;

/// The frames of control that a connection may send.
#[derive(Debug)]
struct Budget {
    left: f64,
    at: Instant,
    /// Calls that have come since.
    calls: u32,
    /// Bytes that have been written since.
    written: usize,
}

impl Budget {
    fn new(now: Instant) -> Self {
        Self { left: f64::from(BURST), at: now, calls: 0, written: 0 }
    }

    /// Frames of control have come.
    fn spend(&mut self, control: u32, now: Instant) {
        let earned = (now - self.at).as_secs_f64() * f64::from(RATE);
        let written = u32::try_from(self.written / BYTES_PER_FRAME).unwrap_or(u32::MAX);
        self.written %= BYTES_PER_FRAME;
        self.at = now;
        let more = earned + f64::from(written) + f64::from(std::mem::take(&mut self.calls)) * f64::from(PER_CALL);
        self.left = (self.left + more - f64::from(control)).min(f64::from(BURST));
    }

    /// How long to wait before anything more is read.
    fn debt(&self) -> Option<Duration> {
        (self.left < 0.0).then(|| Duration::from_secs_f64(-self.left / f64::from(RATE)))
    }

    /// Calls have come.
    fn called(&mut self, calls: u32) {
        self.calls = self.calls.saturating_add(calls); // a client may send no frame of control for years
    }
}

/// A connection that is read in polls and within its budget, and written to in polls. HTTP/2 has it, and what polls HTTP/2.
#[derive(Debug)]
pub(crate) struct Paced<T>(Rc<RefCell<Pace<T>>>);

/// The state of such a connection.
#[derive(Debug)]
pub(crate) struct Pace<T> {
    /// The connection itself.
    pub(crate) inner: T,
    /// Bytes that have been written and have not left.
    pub(crate) gathered: Gathered,
    /// When something was last read.
    pub(crate) read_at: Instant,
    /// It has sent more frames of control than its budget for too long.
    pub(crate) flood: bool,
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
    /// The same of the time before.
    control_before: u32,
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
        Self(Rc::new(RefCell::new(Pace {
            inner,
            gathered: Gathered::default(),
            read_at: Instant::now(),
            flood: false,
            errors: Vec::new(),
            withheld: false,
            fields: 0,
            begun: 0,
            calls: 0,
            preface: PREFACE,
            scan: FrameScan::default(),
            budget: Budget::new(Instant::now()),
            control: 0,
            bytes: 0,
            control_before: 0,
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
        (self.over, self.calls, self.withheld) = (false, 0, false);
        self.gathered.begin_turn();
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

    fn next_turn(&mut self) {
        (self.control_before, self.control, self.bytes) = (self.control, 0, 0);
    }

    /// How many of the bytes may be passed on.
    fn came(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0; // no byte arrived, so nothing says that the peer is alive
        }
        let calls = &mut self.calls;
        let seen = self.scan.scan(bytes, || {
            let may_begin = *calls < CALLS_PER_TURN;
            *calls += u32::from(may_begin);
            may_begin
        });
        self.begun += seen.calls;
        self.control += seen.turn;
        self.bytes += seen.bytes;
        self.read_at = Instant::now();
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
            self.flood = now - since > MAX_FLOOD;
        } else if self.budget.left > f64::from(CONTROL_PER_TURN) {
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
        let polled = if self.control.max(self.control_before) >= CAREFUL_FROM {
            let mut few = [0; CAREFUL_READ];
            let room = few.len().min(buffer.remaining());
            let mut part = ReadBuf::new(&mut few[..room]);
            let polled = self.poll_bytes(cx, &mut part);
            buffer.put_slice(part.filled());
            polled
        } else {
            self.poll_bytes(cx, buffer)
        };
        if polled.is_pending() && self.held_back.is_empty() {
            self.next_turn();
        }
        polled
    }

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
}

impl<T: AsyncWrite + Unpin> Pace<T> {
    /// Ends a poll. Ready when all that was written in it has left; pending if the peer does not take it now.
    pub(crate) fn poll_end_turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.gathered.poll_end_turn(&mut self.inner, cx)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = ready!(self.gathered.poll_write(&mut self.inner, cx, pieces))?;
        self.budget.written += written;
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
        let Pace { inner, gathered, .. } = &mut *self.state();
        gathered.poll_flush(inner, cx)
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
    async fn read_in_turns(mut paced: Paced<DuplexStream>, all: &mut Vec<u8>) {
        let polls = paced.same();
        let mut reading = std::pin::pin!(paced.read_to_end(all));
        let read = std::future::poll_fn(|cx| {
            polls.state().begin_turn();
            reading.as_mut().poll(cx)
        });
        read.await.expect("reads");
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_turn_is_over_nothing_more_is_read_in_it() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&PING.repeat(1_000)).await.expect("room");
        let mut paced = Paced::new(server);
        let mut turns = Vec::new();
        for _ in 0..2 {
            paced.state().begin_turn();
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
        read_in_turns(Paced::new(server), &mut all).await;
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
            let paced = Paced::new(server);
            read_in_turns(paced.same(), &mut Vec::new()).await;
            assert_eq!(paced.state().flood, told, "{seconds} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_many_fields_are_read_no_faster_than_the_budget_grows_and_plain_ones_are() {
        for (fields, least) in [(PLAIN_FIELDS, 0.0), (PLAIN_FIELDS + 400, 2.7)] {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let mut paced = Paced::new(server);
            paced.read_exact(&mut [0; PREFACE.len()]).await.expect("reads");
            let begun = Instant::now();
            for turn in 0..25 {
                client.write_all(&frame(1, 5, 2 * turn + 1, 40)).await.expect("room");
                paced.state().begin_turn();
                paced.read_exact(&mut [0; 49]).await.expect("reads");
                paced.state().call_has(fields);
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
        let mut paced = Paced::new(server);
        let (mut begun, mut buffer) = (Vec::new(), [0; 8_192]);
        for _ in 0..4 {
            paced.state().begin_turn();
            while tokio::time::timeout(Duration::ZERO, paced.read(&mut buffer)).await.is_ok() {}
            begun.push(std::mem::take(&mut paced.state().begun));
        }
        assert_eq!(begun, [32, 32, 32, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_bytes_that_are_read_count_as_life() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let mut paced = Paced::new(server);
        let mut preface = [0; PREFACE.len()];
        paced.read_exact(&mut preface).await.expect("reads");
        let begun = Instant::now();
        let mut byte = [0];
        tokio::time::timeout(Duration::from_secs(1), paced.read(&mut byte)).await.expect_err("nothing comes");
        assert_eq!(paced.state().read_at, begun);
        client.write_all(&[1]).await.expect("room");
        paced.read_exact(&mut byte).await.expect("reads");
        assert_eq!(paced.state().read_at, begun + Duration::from_secs(1));
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
        read_in_turns(Paced::new(server), &mut Vec::new()).await;
        assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    }

    #[test]
    fn calls_of_years_without_a_frame_of_control_are_counted_without_overflow() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        budget.called(u32::MAX);
        budget.called(2);
        budget.spend(2 * BURST, now);
        assert!(budget.debt().is_none(), "the calls earned more than that");
    }
}
