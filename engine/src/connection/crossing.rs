//! Frames that a client sent before it read the server's GOAWAY.
//!
//! A connection ends with two GOAWAY frames (RFC 9113, 6.8). The first says that it will end. The client acknowledges with a
//! PING, and the second GOAWAY names the last call. A client may begin another call just before it acknowledges. HTTP/2
//! ignores that call, and the client repeats it elsewhere. But `h2` takes a `WINDOW_UPDATE` of an ignored call for an error
//! of the whole connection and would end open calls. So these frames are left out here.

use bytes::{BufMut, BytesMut};

const HEAD: usize = 9;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;

/// What `h2` puts into the PING after its first GOAWAY.
const FAREWELL: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// Where a frame that is being read stands.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) head: [u8; HEAD],
    /// How much of the head has come.
    pub(crate) have: usize,
    /// How much of the rest is to come.
    pub(crate) rest: usize,
    /// The highest stream that was begun.
    pub(crate) highest: u32,
}

impl Place {
    /// The stream of the frame whose head is whole.
    pub(crate) fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.head;
        u32::from_be_bytes([a, b, c, d]) & 0x7FFF_FFFF
    }
}

/// Passes frames on, but not those of calls that are passed over.
#[derive(Debug)]
pub(crate) struct Crossing {
    place: Place,
    /// How much of the head has been passed on already.
    passed: usize,
    /// Whether the rest of the frame is left out.
    leave_out: bool,
    /// The rest of an acknowledgement, as far as it has come.
    acknowledged: Option<Vec<u8>>,
    /// The last call that is served, once it is known.
    last: Option<u32>,
    /// What may be passed on.
    pub(crate) out: BytesMut,
}

impl Crossing {
    /// Starts at a position; everything before it has been passed on.
    pub(crate) fn new(place: Place) -> Self {
        Self { place, passed: place.have, leave_out: false, acknowledged: None, last: None, out: BytesMut::new() }
    }

    /// Takes what has come.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.place.rest > 0 {
                let (piece, more) = bytes.split_at(self.place.rest.min(bytes.len()));
                self.place.rest -= piece.len();
                self.put_rest(piece);
                bytes = more;
                continue;
            }
            let (piece, more) = bytes.split_at((HEAD - self.place.have).min(bytes.len()));
            self.place.head[self.place.have..self.place.have + piece.len()].copy_from_slice(piece);
            self.place.have += piece.len();
            bytes = more;
            if self.place.have == HEAD {
                self.put_head();
            }
        }
    }

    fn put_head(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.place.head;
        let stream = self.place.stream();
        self.place.rest = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if kind == HEADERS && self.last.is_none() {
            self.place.highest = self.place.highest.max(stream);
        }
        self.leave_out = kind == WINDOW_UPDATE && self.last.is_some_and(|last| stream > last);
        self.acknowledged = (kind == PING && flags & ACK != 0).then(Vec::new);
        if !self.leave_out {
            self.out.put_slice(&self.place.head[self.passed..]);
        }
        self.passed = 0;
        self.place.have = 0;
    }

    fn put_rest(&mut self, piece: &[u8]) {
        if self.leave_out {
            return;
        }
        self.out.put_slice(piece);
        let Some(payload) = &mut self.acknowledged else { return };
        if payload.len() + piece.len() <= FAREWELL.len() {
            payload.extend_from_slice(piece);
        }
        if *payload == FAREWELL && self.last.is_none() {
            self.last = Some(self.place.highest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], payload].concat()
    }

    fn wire(after: u8) -> (Vec<u8>, Vec<u8>) {
        let update = |stream| frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 9]);
        let before = [frame(HEADERS, 4, 3, b"block"), update(3), update(5), frame(PING, ACK, 0, &[1; 8])].concat();
        let acknowledged = frame(PING, ACK, 0, &FAREWELL);
        let kept = [update(0), update(3), frame(HEADERS, 4, after, b"block")].concat();
        let passed = [before.clone(), acknowledged.clone(), kept.clone(), frame(0, 1, after, b"data")].concat();
        (passed, [before, acknowledged, kept, update(after), frame(0, 1, after, b"data")].concat())
    }

    proptest! {
        #[test]
        fn only_updates_of_calls_that_began_too_late_are_left_out_however_the_wire_is_cut(
            cuts in proptest::collection::vec(1_usize..20, 1..20), begun in 0_usize..20,
        ) {
            let (expected, came) = wire(5);
            let mut place = Place { have: begun.min(HEAD), ..Place::default() };
            if begun >= HEAD {
                place = Place { have: 0, rest: 14 - begun.min(14), highest: 3, ..place };
            }
            place.head[..begun.min(HEAD)].copy_from_slice(&came[..begun.min(HEAD)]);
            let begun = begun.min(14); // the first frame has 14 bytes
            let mut crossing = Crossing::new(place);
            let (mut at, mut cuts) = (begun, cuts.into_iter().cycle());
            let mut out = came[..begun].to_vec();
            while at < came.len() {
                let end = came.len().min(at + cuts.next().unwrap_or(1));
                crossing.put(&came[at..end]);
                out.extend_from_slice(&crossing.out.split());
                at = end;
            }
            prop_assert_eq!(out, expected);
        }

        #[test]
        fn any_bytes_are_passed_on_before_an_acknowledgement(
            bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 1_usize..40,
        ) {
            let mut crossing = Crossing::new(Place::default());
            bytes.chunks(cut).for_each(|piece| crossing.put(piece));
            let whole = bytes.len() - crossing.place.have;
            prop_assert_eq!(&crossing.out[..], &bytes[..whole]);
        }
    }
}
