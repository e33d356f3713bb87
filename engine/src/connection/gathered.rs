//! What a connection writes in a poll, gathered: it leaves in one write, and with TLS as one record.
//!
//! HTTP/2 by itself writes each answer when it is asked for the next call, and the trailers of a larger one in a write of
//! their own. A write costs more than all else that a hit does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::outgoing::Outgoing;

/// Bytes that are gathered at most: what fills a record of TLS. A larger write is not copied.
const FULL: usize = 16 << 10;

/// Bytes that have been written to a connection and have not left. Before the first poll, each write leaves at once.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// Between the beginning of a poll and its end.
    in_turn: bool,
    outgoing: Outgoing,
}

impl Gathered {
    /// From now on is gathered what is written.
    pub(crate) fn begin_turn(&mut self) {
        self.in_turn = true;
    }

    /// Bytes that have been written and have not left.
    pub(crate) fn unsent(&self) -> usize {
        self.outgoing.len()
    }

    /// Ends a poll. Ready when all that was written in it has left; pending if the peer does not take it now.
    pub(crate) fn poll_end_turn<T>(&mut self, to: &mut T, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        T: AsyncWrite + Unpin,
    {
        self.in_turn = false;
        self.outgoing.poll_leave(to, cx)
    }

    pub(crate) fn poll_write<T>(
        &mut self,
        to: &mut T,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>>
    where
        T: AsyncWrite + Unpin,
    {
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if self.outgoing.len() + length > FULL || !self.in_turn {
            ready!(self.outgoing.poll_leave(to, cx))?;
        }
        if length > FULL || !self.in_turn {
            return Pin::new(to).poll_write_vectored(cx, pieces);
        }
        for piece in pieces {
            self.outgoing.extend(piece);
        }
        Poll::Ready(Ok(length))
    }

    pub(crate) fn poll_flush<T: AsyncWrite + Unpin>(
        &mut self,
        to: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.in_turn { Poll::Ready(Ok(())) } else { self.outgoing.poll_leave(to, cx) }
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

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Something that writes to a peer.
    struct Writer(Gathered, Peer);

    impl Writer {
        fn to(peer: Peer) -> Self {
            Self(Gathered::default(), peer)
        }

        fn write(&mut self, pieces: &[&[u8]]) -> Poll<usize> {
            let slices: Vec<io::IoSlice<'_>> = pieces.iter().map(|piece| io::IoSlice::new(piece)).collect();
            let mut cx = Context::from_waker(Waker::noop());
            self.0.poll_write(&mut self.1, &mut cx, &slices).map(|written| written.expect("takes it"))
        }

        fn flush(&mut self) -> bool {
            let mut cx = Context::from_waker(Waker::noop());
            self.0.poll_flush(&mut self.1, &mut cx).map(|flushed| flushed.expect("takes it")).is_ready()
        }

        fn end_turn(&mut self) -> bool {
            let mut cx = Context::from_waker(Waker::noop());
            self.0.poll_end_turn(&mut self.1, &mut cx).map(|ended| ended.expect("takes it")).is_ready()
        }
    }

    #[test]
    fn all_that_is_written_and_flushed_in_a_turn_leaves_in_one_write_at_its_end() {
        let mut writer = Writer::to(Peer::ready(usize::MAX, usize::MAX));
        for answer in 0..8_u8 {
            writer.0.begin_turn();
            assert_eq!(writer.write(&[b"head", &[answer; 300]]), Poll::Ready(304));
            assert!(writer.flush());
            assert_eq!(writer.write(&[b"trailers"]), Poll::Ready(8));
            assert!(writer.flush());
        }
        assert!(writer.1.writes.is_empty());
        assert_eq!(writer.0.unsent(), 8 * 312);
        assert!(writer.end_turn());
        assert_eq!(writer.1.writes.iter().map(Vec::len).collect::<Vec<_>>(), [8 * 312]);
        assert_eq!(writer.0.unsent(), 0);
    }

    #[test]
    fn a_peer_that_takes_nothing_has_no_more_than_a_full_buffer_wait_for_it() {
        let mut writer = Writer::to(Peer::ready(usize::MAX, 0));
        let mut written = 0;
        for _ in 0..1_000 {
            writer.0.begin_turn();
            while writer.write(&[&[7; 1_000]]).is_ready() {
                written += 1_000;
            }
            assert!(!writer.end_turn());
        }
        assert_eq!((written, writer.0.unsent()), (16_000, 16_000));
    }

    proptest! {
        #[test]
        fn the_peer_gets_all_in_its_order_however_little_it_takes(
            lengths in proptest::collection::vec((1_usize..40_000, any::<bool>()), 1..20),
            takes in 1_usize..30_000,
        ) {
            let mut writer = Writer::to(Peer::ready(takes, usize::MAX));
            let mut expected = Vec::new();
            for (number, (length, ends)) in lengths.into_iter().enumerate() {
                writer.0.begin_turn();
                let bytes = vec![u8::try_from(number).expect("few"); length];
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let Poll::Ready(written) = writer.write(&[rest]) else { panic!("it takes some") };
                    rest = &rest[written..];
                }
                expected.extend(bytes);
                if ends {
                    prop_assert!(writer.end_turn());
                    prop_assert_eq!(writer.1.all(), expected.clone());
                }
                prop_assert!(writer.0.unsent() <= FULL);
            }
            prop_assert!(writer.end_turn());
            prop_assert_eq!(writer.1.all(), expected);
        }
    }
}
