//! What a connection writes in a poll, gathered: it leaves in one write, and with TLS as one record.
//!
//! HTTP/2 by itself writes each answer when it is asked for the next call, and the trailers of a larger one in a write of
//! their own. A write costs more than all else that a hit does.

use std::cell::{Ref, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::outgoing::Outgoing;

/// Bytes that are gathered at most: what fills a record of TLS. A larger write is not copied.
const FULL: usize = 16 << 10;

/// A connection that is written to in polls. Clones are the same connection: HTTP/2 has one, the end of a poll another.
#[derive(Debug)]
pub(crate) struct Gathered<T>(Rc<RefCell<State<T>>>);

impl<T> Clone for Gathered<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

#[derive(Debug)]
struct State<T> {
    inner: T,
    /// Between the beginning of a poll and its end.
    in_turn: bool,
    gathered: Outgoing,
}

impl<T> Gathered<T> {
    /// Around a connection that is not polled yet: each write leaves at once.
    pub(crate) fn new(inner: T) -> Self {
        Self(Rc::new(RefCell::new(State { inner, in_turn: false, gathered: Outgoing::default() })))
    }

    /// From now on is gathered what is written.
    pub(crate) fn begin_turn(&self) {
        self.0.borrow_mut().in_turn = true;
    }

    /// Bytes that have been written and have not left.
    pub(crate) fn unsent(&self) -> usize {
        self.0.borrow().gathered.len()
    }

    /// The connection itself.
    pub(crate) fn inner(&self) -> Ref<'_, T> {
        Ref::map(self.0.borrow(), |gathered| &gathered.inner)
    }
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    /// Ends a poll. Ready when all that was written in it has left; pending if the peer does not take it now.
    pub(crate) fn poll_end_turn(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outgoing = self.0.borrow_mut();
        outgoing.in_turn = false;
        outgoing.poll_flush(cx)
    }
}

impl<T: AsyncWrite + Unpin> State<T> {
    fn poll_write(&mut self, cx: &mut Context<'_>, pieces: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if self.gathered.len() + length > FULL || !self.in_turn {
            ready!(self.gathered.poll_leave(&mut self.inner, cx))?;
        }
        if length > FULL || !self.in_turn {
            return Pin::new(&mut self.inner).poll_write_vectored(cx, pieces);
        }
        for piece in pieces {
            self.gathered.extend(piece);
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.in_turn { Poll::Ready(Ok(())) } else { self.gathered.poll_leave(&mut self.inner, cx) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.borrow_mut().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let State { inner, gathered, .. } = &mut *self.0.borrow_mut();
        ready!(gathered.poll_leave(inner, cx))?;
        Pin::new(inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    /// The bytes that a peer has taken, write by write. It takes so much of each, and nothing once it is full.
    #[derive(Debug, Default)]
    struct Peer {
        writes: Vec<Vec<u8>>,
        takes: usize,
        room: usize,
    }

    impl Peer {
        fn ready(takes: usize, room: usize) -> Self {
            Self { writes: Vec::new(), takes, room }
        }

        fn all(&self) -> Vec<u8> {
            self.writes.concat()
        }
    }

    impl AsyncWrite for Peer {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.takes).min(self.room);
            if taken == 0 && !bytes.is_empty() {
                return Poll::Pending;
            }
            self.room -= taken;
            self.writes.push(bytes[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.room = 0;
            Poll::Ready(Ok(()))
        }
    }

    fn write(gathered: &mut Gathered<Peer>, pieces: &[&[u8]]) -> Poll<usize> {
        let slices: Vec<io::IoSlice<'_>> = pieces.iter().map(|piece| io::IoSlice::new(piece)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(gathered).poll_write_vectored(&mut cx, &slices).map(|written| written.expect("takes it"))
    }

    fn flush(gathered: &mut Gathered<Peer>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(gathered).poll_flush(&mut cx).map(|flushed| flushed.expect("takes it")).is_ready()
    }

    fn end_turn(gathered: &Gathered<Peer>) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        gathered.poll_end_turn(&mut cx).map(|ended| ended.expect("takes it")).is_ready()
    }

    #[test]
    fn all_that_is_written_and_flushed_in_a_turn_leaves_in_one_write_at_its_end() {
        let mut gathered = Gathered::new(Peer::ready(usize::MAX, usize::MAX));
        for answer in 0..8_u8 {
            gathered.begin_turn();
            assert_eq!(write(&mut gathered, &[b"head", &[answer; 300]]), Poll::Ready(304));
            assert!(flush(&mut gathered));
            assert_eq!(write(&mut gathered, &[b"trailers"]), Poll::Ready(8));
            assert!(flush(&mut gathered));
        }
        assert!(gathered.0.borrow().inner.writes.is_empty());
        assert_eq!(gathered.unsent(), 8 * 312);
        assert!(end_turn(&gathered));
        assert_eq!(gathered.0.borrow().inner.writes.iter().map(Vec::len).collect::<Vec<_>>(), [8 * 312]);
        assert_eq!(gathered.unsent(), 0);
    }

    #[test]
    fn a_peer_that_takes_nothing_has_no_more_than_a_full_buffer_wait_for_it() {
        let mut gathered = Gathered::new(Peer::ready(usize::MAX, 0));
        let mut written = 0;
        for _ in 0..1_000 {
            gathered.begin_turn();
            while write(&mut gathered, &[&[7; 1_000]]).is_ready() {
                written += 1_000;
            }
            assert!(!end_turn(&gathered));
        }
        assert_eq!((written, gathered.unsent()), (16_000, 16_000));
    }

    #[test]
    fn the_end_of_a_connection_lets_what_was_gathered_leave_first() {
        let mut gathered = Gathered::new(Peer::ready(usize::MAX, usize::MAX));
        gathered.begin_turn();
        assert!(write(&mut gathered, &[b"farewell"]).is_ready());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut gathered).poll_shutdown(&mut cx).is_ready());
        assert_eq!(gathered.0.borrow().inner.all(), b"farewell");
    }

    proptest! {
        #[test]
        fn the_peer_gets_all_in_its_order_however_little_it_takes(
            lengths in proptest::collection::vec((1_usize..40_000, any::<bool>()), 1..20),
            takes in 1_usize..30_000,
        ) {
            let mut gathered = Gathered::new(Peer::ready(takes, usize::MAX));
            let mut expected = Vec::new();
            for (number, (length, ends)) in lengths.into_iter().enumerate() {
                gathered.begin_turn();
                let bytes = vec![u8::try_from(number).expect("few"); length];
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let Poll::Ready(written) = write(&mut gathered, &[rest]) else { panic!("it takes some") };
                    rest = &rest[written..];
                }
                expected.extend(bytes);
                if ends {
                    prop_assert!(end_turn(&gathered));
                    prop_assert_eq!(gathered.0.borrow().inner.all(), expected.clone());
                }
                prop_assert!(gathered.unsent() <= FULL);
            }
            prop_assert!(end_turn(&gathered));
            prop_assert_eq!(gathered.0.borrow().inner.all(), expected);
        }
    }
}
