//! What goes into DATA frames: a prefix, a header that all answers share, and an answer's own bytes, none of them copied.
//!
//! A payload that waits for its reader is counted until HTTP/2 drops it, which it does when it is written, or the
//! stream or the connection ends. So the count is exact, whatever happens to a stream.

use std::cell::Cell;
use std::io::IoSlice;
use std::rc::Rc;

use bytes::{Buf, Bytes};

use crate::grpc::message::PREFIX;

/// What a payload that waits costs beyond its own bytes: the state of its stream and of its frames.
const OVERHEAD: usize = 512;

/// What an answer without a message costs: its trailers, and the state of its stream.
const STATUS_BYTES: usize = 1 << 10;

/// Parts of a message for many streams. They share one copy, and each counts one part at least.
const MOST_PARTS: usize = 16;

/// Bytes that wait for readers: of one connection, of its address, and of all connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) bytes: Cell<usize>,
    pub(crate) of_address: Rc<Cell<usize>>,
    pub(crate) of_all: Rc<Cell<usize>>,
    /// Of these, bytes that the connection has written and that have not left.
    unsent: Cell<usize>,
    /// Of answers without a message, since the connection wrote all that it had.
    pub(crate) statuses: Cell<usize>,
    /// They count for the connection alone, which is about to close.
    written_off: Cell<bool>,
}

impl Waiting {
    pub(crate) fn of(of_address: Rc<Cell<usize>>, of_all: &Rc<Cell<usize>>) -> Rc<Self> {
        Rc::new(Self { of_address, of_all: Rc::clone(of_all), ..Self::default() })
    }

    /// An answer without a message waits until the connection has written all that it has.
    pub(crate) fn add_status(&self) {
        self.statuses.set(self.statuses.get() + STATUS_BYTES);
    }

    /// So many written bytes wait now.
    pub(crate) fn set_unsent(&self, bytes: usize) {
        self.change(self.unsent.replace(bytes), bytes);
    }

    /// Stops counting the waiting bytes, for the address and in all.
    pub(crate) fn write_off(&self) {
        let bytes = self.bytes.get();
        self.change(bytes, 0);
        self.written_off.set(true);
        self.change(0, bytes);
    }

    /// Replaces a part of the waiting bytes.
    fn change(&self, before: usize, after: usize) {
        let counts = [&self.bytes, &*self.of_address, &*self.of_all];
        for count in &counts[..if self.written_off.get() { 1 } else { 3 }] {
            count.set(count.get() - before + after);
        }
    }
}

/// Some of them, which wait until this is dropped.
#[derive(Debug)]
struct Counted {
    waiting: Rc<Waiting>,
    bytes: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.waiting.change(self.bytes, 0);
    }
}

/// A framed message, or the rest of it.
#[derive(Debug)]
pub(crate) struct Payload {
    prefix: [u8; PREFIX],
    begun: usize,
    header: Bytes,
    tail: Bytes,
    /// Counts it until its last part is dropped.
    counted: Rc<Counted>,
}

impl Payload {
    /// Bytes that are no message of gRPC.
    pub(crate) fn plain(bytes: Bytes, waiting: &Rc<Waiting>) -> Self {
        let mut payload = Self::framed(Bytes::new(), bytes, 1, waiting);
        payload.begun = PREFIX;
        payload
    }

    /// Frames a message that is made of two parts, and that so many streams share.
    pub(crate) fn framed(header: Bytes, tail: Bytes, streams: usize, waiting: &Rc<Waiting>) -> Self {
        let length = header.len() + tail.len();
        let mut prefix = [0; PREFIX];
        // Answers are made by the servicers, which bound them far below 4 GiB.
        prefix[1..].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        let bytes = OVERHEAD + length / streams.clamp(1, MOST_PARTS);
        waiting.change(0, bytes);
        let counted = Rc::new(Counted { waiting: Rc::clone(waiting), bytes });
        Self { prefix, begun: 0, header, tail, counted }
    }

    /// Cuts off so many of the first bytes. All parts count as waiting until the last one is dropped.
    pub(crate) fn split_to(&mut self, length: usize) -> Self {
        let of_prefix = length.min(PREFIX - self.begun);
        let of_header = (length - of_prefix).min(self.header.len());
        let mut prefix = [0; PREFIX];
        prefix[PREFIX - of_prefix..].copy_from_slice(&self.prefix[self.begun..self.begun + of_prefix]);
        self.begun += of_prefix;
        Self {
            prefix,
            begun: PREFIX - of_prefix,
            header: self.header.split_to(of_header),
            tail: self.tail.split_to(length - of_prefix - of_header),
            counted: Rc::clone(&self.counted),
        }
    }

    fn pieces(&self) -> [&[u8]; 3] {
        [&self.prefix[self.begun..], &self.header, &self.tail]
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        PREFIX - self.begun + self.header.len() + self.tail.len()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces().into_iter().find(|piece| !piece.is_empty()).unwrap_or_default()
    }

    fn chunks_vectored<'a>(&'a self, target: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (place, piece) in target.iter_mut().zip(self.pieces().into_iter().filter(|piece| !piece.is_empty())) {
            *place = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        let of_prefix = count.min(PREFIX - self.begun);
        let of_header = (count - of_prefix).min(self.header.len());
        self.begun += of_prefix;
        self.header.advance(of_header);
        self.tail.advance(count - of_prefix - of_header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_of(mut payload: Payload) -> Vec<u8> {
        payload.copy_to_bytes(payload.remaining()).to_vec()
    }

    #[test]
    fn what_waits_is_counted_until_its_last_part_is_gone() {
        let of_all = Rc::new(Cell::new(0));
        let waiting = Waiting::of(Rc::default(), &of_all);
        let mut payload = Payload::framed(Bytes::from_static(b"header"), Bytes::from_static(b"tail"), 1, &waiting);
        let counted = OVERHEAD + 10;
        assert_eq!((waiting.bytes.get(), of_all.get()), (counted, counted));
        let first = payload.split_to(7);
        drop(payload);
        assert_eq!(of_all.get(), counted);
        drop(first);
        assert_eq!((waiting.bytes.get(), of_all.get()), (0, 0));
        for (streams, length) in [(10, 100), (10_000, 1_000 / MOST_PARTS)] {
            let _shared = Payload::framed(Bytes::new(), Bytes::from(vec![0; 1_000]), streams, &waiting);
            assert_eq!(of_all.get(), OVERHEAD + length, "{streams}");
        }
    }

    proptest! {
        #[test]
        fn a_payload_is_its_prefix_and_its_parts_however_it_is_cut_and_read(
            header in proptest::collection::vec(any::<u8>(), 0..40),
            tail in proptest::collection::vec(any::<u8>(), 0..300),
            cut in 0_usize..345, steps in proptest::collection::vec(1_usize..9, 1..20),
        ) {
            let waiting = Waiting::of(Rc::default(), &Rc::default());
            let mut expected = vec![0];
            expected.extend_from_slice(&u32::try_from(header.len() + tail.len()).expect("short").to_be_bytes());
            expected.extend_from_slice(&header);
            expected.extend_from_slice(&tail);
            let mut payload = Payload::framed(header.into(), tail.into(), 1, &waiting);
            prop_assert_eq!(payload.remaining(), expected.len());
            let mut slices = [IoSlice::new(&[]); 4];
            let filled = payload.chunks_vectored(&mut slices);
            prop_assert_eq!(slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>(), expected.clone());
            let first = payload.split_to(cut.min(expected.len()));
            let mut out = all_of(first);
            let mut steps = steps.into_iter().cycle();
            while payload.has_remaining() {
                let step = steps.next().unwrap_or(1).min(payload.chunk().len());
                out.extend_from_slice(&payload.chunk()[..step]);
                payload.advance(step);
            }
            prop_assert_eq!(out, expected);
        }
    }
}
