//! Frames that a client sent before it read the server's GOAWAY.
//!
//! A connection ends with two GOAWAY frames (RFC 9113, 6.8). The first says that it will end. The client acknowledges with a
//! PING, and the second GOAWAY names the last call. A client may begin another call just before it acknowledges. HTTP/2
//! ignores that call, and the client repeats it elsewhere. But `h2` takes a `WINDOW_UPDATE` of an ignored call for an error
//! of the whole connection and would end open calls. So these frames are left out here.

use bytes::{BufMut, BytesMut};

use crate::connection::scan::{Frames, HEADERS, Piece};

const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;

/// What `h2` puts into the PING after its first GOAWAY.
const FAREWELL: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// Passes frames on, but not those of calls that are passed over.
#[derive(Debug)]
pub(crate) struct Crossing {
    frames: Frames,
    /// The highest stream that was begun before the last call was known.
    highest: u32,
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
    pub(crate) fn new(frames: Frames, highest: u32) -> Self {
        let (passed, out) = (frames.have, BytesMut::new());
        Self { frames, highest, passed, leave_out: false, acknowledged: None, last: None, out }
    }

    /// Takes what has come.
    pub(crate) fn put(&mut self, mut bytes: &[u8]) {
        while let Some(piece) = self.frames.next(&mut bytes) {
            match piece {
                Piece::PartOfHead => {}
                Piece::Head => self.put_head(),
                Piece::Payload(_) if self.leave_out => {}
                Piece::Payload(payload) => self.put_payload(payload),
            }
        }
    }

    fn put_head(&mut self) {
        let ([_, _, _, kind, flags, ..], stream) = (self.frames.head, self.frames.stream());
        if kind == HEADERS && self.last.is_none() {
            self.highest = self.highest.max(stream);
        }
        self.leave_out = kind == WINDOW_UPDATE && self.last.is_some_and(|last| stream > last);
        self.acknowledged = (kind == PING && flags & ACK != 0).then(Vec::new);
        if !self.leave_out {
            self.out.put_slice(&self.frames.head[self.passed..]);
        }
        self.passed = 0;
    }

    fn put_payload(&mut self, piece: &[u8]) {
        self.out.put_slice(piece);
        let Some(payload) = &mut self.acknowledged else { return };
        if payload.len() + piece.len() <= FAREWELL.len() {
            payload.extend_from_slice(piece);
        }
        if *payload == FAREWELL && self.last.is_none() {
            self.last = Some(self.highest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::scan::FrameScan;
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
            let begun = begun.min(14); // the first frame has 14 bytes
            let mut before = FrameScan::default();
            before.scan(&came[..begun], || true);
            let mut crossing = Crossing::new(before.frames, before.highest);
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
            let mut crossing = Crossing::new(Frames::default(), 0);
            bytes.chunks(cut).for_each(|piece| crossing.put(piece));
            let whole = bytes.len() - crossing.frames.have;
            prop_assert_eq!(&crossing.out[..], &bytes[..whole]);
        }
    }
}
