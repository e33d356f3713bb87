//! Answers on their way to a peer.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;

/// A part from this size on is not copied.
const LARGE: usize = 16 << 10;

/// Bytes that wait for a peer, in their order. Small parts leave together.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    parts: VecDeque<Bytes>,
    gathered: Vec<u8>,
    length: usize,
}

impl Outgoing {
    /// Bytes that have not left.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Adds a copy.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Adds a part.
    pub(crate) fn push(&mut self, part: Bytes) {
        if part.len() < LARGE {
            return self.extend(&part);
        }
        self.end_part();
        self.length += part.len();
        self.parts.push_back(part);
    }

    /// Adds all of another.
    pub(crate) fn append(&mut self, mut other: Self) {
        if self.length == 0 {
            *self = other;
            return;
        }
        for part in other.parts.drain(..) {
            self.push(part);
        }
        self.extend(&other.gathered);
    }

    fn end_part(&mut self) {
        if !self.gathered.is_empty() {
            self.parts.push_back(std::mem::take(&mut self.gathered).into());
        }
    }

    /// Ready when all has left.
    pub(crate) fn poll_leave<T: AsyncWrite + Unpin>(
        &mut self,
        to: &mut T,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.end_part();
        while let Some(part) = self.parts.front_mut() {
            let written = ready!(Pin::new(&mut *to).poll_write(cx, part))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.length -= written;
            part.advance(written);
            if part.is_empty() {
                self.parts.pop_front();
            }
        }
        Pin::new(to).poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    impl Outgoing {
        pub(crate) fn all(mut self) -> Bytes {
            self.end_part();
            let parts: Vec<Bytes> = self.parts.into();
            assert_eq!(parts.iter().map(Bytes::len).sum::<usize>(), self.length);
            parts.concat().into()
        }
    }

    proptest! {
        #[test]
        fn all_leaves_in_its_order_however_little_the_peer_takes(
            lengths in proptest::collection::vec((0_usize..40_000, any::<bool>()), 1..9), takes in 1_usize..50_000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("memory");
            runtime.block_on(async {
                let (mut outgoing, mut expected) = (Outgoing::default(), Vec::new());
                for (number, (length, copies)) in (0_u8..).zip(lengths) {
                    let part = vec![number; length];
                    expected.extend_from_slice(&part);
                    if copies { outgoing.extend(&part) } else { outgoing.push(part.into()) }
                }
                assert_eq!(outgoing.len(), expected.len());
                let (mut ours, mut theirs) = tokio::io::duplex(takes);
                let leaving = async { std::future::poll_fn(|cx| outgoing.poll_leave(&mut ours, cx)).await };
                let mut came = vec![0; expected.len()];
                let (left, _) = tokio::join!(leaving, theirs.read_exact(&mut came));
                left.expect("open");
                assert_eq!((outgoing.len(), came), (0, expected));
            });
        }
    }
}
