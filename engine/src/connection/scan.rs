//! The frames of a connection: where its wire stands, how many begin calls, and how many are frames of control. And the HTTP/2
//! errors that this side reports: the `RST_STREAM` and GOAWAY frames in the bytes that it writes.
//!
//! `h2` answers a malformed request by itself and tells its user nothing. So these frames are read where they leave.

use h2::Reason;

/// Bytes of the head of a frame.
const HEAD: usize = 9;

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// Bytes of a block of fields above which it counts as much for each as a frame of control: few bytes can stand for many fields.
const PLAIN_BLOCK: usize = 128;
const BLOCK_BYTES_PER_FRAME: usize = 16;

/// A DATA frame below this many bytes that does not end its stream counts as a frame of control.
const TINY_DATA: usize = 64;

/// Follows the frames on a wire, whatever pieces it comes in.
#[derive(Debug, Default, Clone, Copy)]
struct Frames {
    /// The head of the frame.
    head: [u8; HEAD],
    /// How much of the next head has come.
    have: usize,
    /// How much of the payload is to come.
    rest: usize,
}

/// A piece of a frame.
enum Piece<'a> {
    PartOfHead,
    /// The head is whole with it.
    Head,
    Payload(&'a [u8]),
}

impl Frames {
    /// Takes the next piece from bytes. None if there are none.
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        let wanted = if self.rest > 0 { self.rest } else { HEAD - self.have };
        let (piece, more) = bytes.split_at(wanted.min(bytes.len()));
        *bytes = more;
        if piece.is_empty() {
            return None;
        }
        if self.rest > 0 {
            self.rest -= piece.len();
            return Some(Piece::Payload(piece));
        }
        self.head[self.have..self.have + piece.len()].copy_from_slice(piece);
        self.have = (self.have + piece.len()) % HEAD;
        if self.have > 0 {
            return Some(Piece::PartOfHead);
        }
        let [high, middle, low, ..] = self.head;
        self.rest = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        Some(Piece::Head)
    }

    /// The stream of the frame whose head is whole.
    fn stream(&self) -> u32 {
        let [.., a, b, c, d] = self.head;
        u32::from_be_bytes([a, b, c, d]) & 0x7FFF_FFFF
    }
}

/// What a piece of the wire held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Frames of control.
    pub(crate) control: u32,
    /// Frames that begin a call.
    pub(crate) calls: u32,
    /// Bytes before the first frame that must wait.
    pub(crate) bytes: usize,
    /// Work that ends the poll, in frames of control.
    pub(crate) turn: u32,
}

/// Counts the frames in what is read.
#[derive(Debug, Default)]
pub(crate) struct FrameScan {
    frames: Frames,
    /// The highest stream that was begun.
    highest: u32,
}

impl FrameScan {
    /// Counts what a piece holds, up to the first frame that must wait: after so much work, or a call after so many.
    pub(crate) fn scan(&mut self, bytes: &[u8], turn: u32, calls: u32) -> Seen {
        let (mut seen, mut left, mut before) = (Seen::default(), bytes, self.frames);
        while let Some(piece) = self.frames.next(&mut left) {
            if let Piece::Head = piece {
                if seen.turn >= turn || self.begins_call() && seen.calls >= calls {
                    self.frames = before;
                    return seen;
                }
                self.count(&mut seen);
            }
            seen.bytes = bytes.len() - left.len();
            before = self.frames;
        }
        seen
    }

    /// Whether the frame whose head is whole begins a call.
    fn begins_call(&self) -> bool {
        self.frames.head[3] == HEADERS && self.frames.stream() > self.highest
    }

    /// Counts a frame whose head is whole.
    fn count(&mut self, seen: &mut Seen) {
        const DATA: u8 = 0;
        const CONTINUATION: u8 = 9;
        const END_STREAM: u8 = 1;
        let Frames { head: [_, _, _, kind, flags, ..], rest: length, .. } = self.frames;
        let block = u32::try_from(length.saturating_sub(PLAIN_BLOCK) / BLOCK_BYTES_PER_FRAME).unwrap_or(u32::MAX);
        let (control, turn) = match kind {
            DATA if length >= TINY_DATA || flags & END_STREAM != 0 => (0, 0),
            HEADERS if self.begins_call() => {
                self.highest = self.frames.stream();
                seen.calls += 1;
                (0, block)
            }
            // Trailers. No client of gRPC sends any, and each byte may be a field.
            HEADERS => (1 + u32::try_from(length).unwrap_or(u32::MAX), 1 + block),
            CONTINUATION => (1, 1 + block),
            _ => (1, 1),
        };
        seen.control += control;
        seen.turn += turn;
    }
}

/// Reasons that are no errors: streams that end early on both sides' wish.
pub(crate) const NO_ERRORS: [Reason; 2] = [Reason::NO_ERROR, Reason::CANCEL];

/// An error that was reported to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportedError {
    pub(crate) reason: Reason,
    /// Whether it ends the connection and not only a stream.
    pub(crate) of_connection: bool,
}

/// Follows the frames in what is written, in whatever pieces.
#[derive(Debug, Default)]
pub(crate) struct ErrorScan {
    frames: Frames,
    /// The payload of a frame that reports an error, up to the end of its code.
    payload: Vec<u8>,
}

impl ErrorScan {
    /// Reads a piece, and adds the errors in it.
    pub(crate) fn scan(&mut self, mut bytes: &[u8], found: &mut Vec<ReportedError>) {
        while let Some(piece) = self.frames.next(&mut bytes) {
            let Piece::Payload(payload) = piece else {
                self.payload.clear();
                continue;
            };
            let code_end = match self.frames.head[3] {
                RST_STREAM => 4,
                GOAWAY => 8, // it begins with the last stream
                _ => continue,
            };
            let missing = code_end - self.payload.len();
            self.payload.extend(payload.iter().take(missing));
            let reason = self.payload.last_chunk().map(|code| Reason::from(u32::from_be_bytes(*code)));
            if let Some(reason) = reason.filter(|_| missing > 0 && self.payload.len() == code_end) {
                if !NO_ERRORS.contains(&reason) {
                    found.push(ReportedError { reason, of_connection: code_end == 8 });
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    const MANY: u32 = u32::MAX;

    pub(crate) fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        with_payload(kind, flags, stream, &vec![7; length])
    }

    fn with_payload(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let [_, length @ ..] = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    fn scanned_in_pieces(wire: &[u8], length: usize) -> Seen {
        let mut scan = FrameScan::default();
        wire.chunks(length).map(|piece| scan.scan(piece, MANY, MANY)).fold(Seen::default(), |sum, seen| Seen {
            control: sum.control + seen.control,
            calls: sum.calls + seen.calls,
            bytes: sum.bytes + seen.bytes,
            turn: sum.turn + seen.turn,
        })
    }

    fn scanned(wire: &[u8]) -> Seen {
        FrameScan::default().scan(wire, MANY, MANY)
    }

    #[test]
    fn all_but_calls_and_their_bodies_are_frames_of_control() {
        let calls = [frame(1, 4, 1, 40), frame(0, 1, 1, 5), frame(0, 0, 1, 100)].concat();
        assert_eq!(scanned(&calls), Seen { control: 0, calls: 1, bytes: calls.len(), turn: 0 });
        let others =
            [(4, 6), (6, 8), (8, 4), (3, 4), (0, 1), (99, 0)].map(|(kind, length)| frame(kind, 0, 1, length)).concat();
        assert_eq!(scanned(&others), Seen { control: 6, calls: 0, bytes: others.len(), turn: 6 });
    }

    #[test]
    fn trailers_cost_what_fields_do_and_short_blocks_of_many_are_work() {
        let seen = scanned(&[frame(1, 4, 1, 40), frame(1, 5, 1, 1_000)].concat());
        assert_eq!((seen.calls, seen.control), (1, 1_001));
        let of_450_references = frame(1, 5, 1, 590);
        assert!(scanned(&of_450_references).turn > 25);
    }

    #[test]
    fn a_frame_that_may_not_begin_waits_whole_however_it_is_cut() {
        let call = |stream| [frame(1, 4, stream, 40), frame(0, 1, stream, 5)].concat();
        let ping = frame(6, 0, 0, 8);
        let of_calls = ([call(1), call(3), call(5)], (MANY, 1), 2);
        let of_work = ([ping.clone(), ping.clone(), ping], (1, MANY), 0);
        for (frames, (turn, calls), rest) in [of_calls, of_work] {
            let (wire, first) = (frames.concat(), frames[0].len());
            for cut in 0..9 {
                let mut scan = FrameScan::default();
                let before = scan.scan(&wire[..first + cut], turn, calls);
                let (turn, calls) = (turn - before.turn, calls - before.calls);
                let seen = scan.scan(&wire[first + cut..], turn, calls);
                assert_eq!((before.bytes, seen.bytes, scan.frames.have), (first + cut, 0, cut));
                let seen = scan.scan(&wire[first + cut..], MANY, MANY);
                assert_eq!((seen.calls, seen.bytes), (rest, wire.len() - first - cut));
            }
        }
    }

    proptest! {
        #[test]
        fn frames_are_counted_the_same_however_they_are_cut(
            frames in proptest::collection::vec((0_u8..12, 0_u8..2, 0_usize..2_000), 1..20), cut in 1_usize..300,
        ) {
            let wire: Vec<u8> = frames.into_iter().flat_map(|(kind, flags, length)| frame(kind, flags, 1, length)).collect();
            let whole = scanned(&wire);
            prop_assert_eq!(scanned_in_pieces(&wire, cut), whole);
        }

        #[test]
        fn resets_and_farewells_with_an_error_are_found_however_the_writes_are_cut(cut in 1_usize..40) {
            let wire = [
                frame(4, 0, 0, 0),
                with_payload(RST_STREAM, 0, 1, &[0, 0, 0, 1]),
                frame(0, 0, 1, 100),
                with_payload(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
                with_payload(GOAWAY, 0, 0, &[0, 0, 0, 9, 0, 0, 0, 0]),
                with_payload(1, 0, 1, &[RST_STREAM; 30]),
                with_payload(GOAWAY, 0, 0, &[0, 0, 0, 9, 0, 0, 0, 11, b'x', b'y']),
            ]
            .concat();
            let (mut scan, mut found) = (ErrorScan::default(), Vec::new());
            for piece in wire.chunks(cut) {
                scan.scan(piece, &mut found);
            }
            let expected = [
                ReportedError { reason: Reason::PROTOCOL_ERROR, of_connection: false },
                ReportedError { reason: Reason::ENHANCE_YOUR_CALM, of_connection: true },
            ];
            prop_assert_eq!(found, expected);
        }
    }
}
