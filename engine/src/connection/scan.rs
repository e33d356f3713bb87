//! What a connection sends, by its frames: how many begin calls, and how many are frames of control.

use crate::connection::crossing::Place;

/// Bytes of a block of fields above which it counts as much for each as a frame of control: few bytes can stand for many fields.
const PLAIN_BLOCK: usize = 128;
const BLOCK_BYTES_PER_FRAME: usize = 16;

/// A DATA frame below this many bytes that does not end its stream counts as a frame of control.
const TINY_DATA: usize = 64;

const HEADERS: u8 = 1;

/// What a piece of the wire held.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Frames of control.
    pub(crate) control: u32,
    /// Frames that begin a call.
    pub(crate) calls: u32,
    /// Bytes before the first frame that begins a call and must wait.
    pub(crate) bytes: usize,
    /// Work that ends the poll, in frames of control.
    pub(crate) turn: u32,
}

/// Follows the frames in what is read, whatever pieces it comes in.
#[derive(Debug, Default)]
pub(crate) struct FrameScan(pub(crate) Place);

impl FrameScan {
    /// Counts what a piece holds, up to the first call that may not begin.
    pub(crate) fn scan(&mut self, bytes: &[u8], mut may_begin: impl FnMut() -> bool) -> Seen {
        let mut seen = Seen::default();
        let place = &mut self.0;
        while seen.bytes < bytes.len() {
            let left = &bytes[seen.bytes..];
            if place.rest > 0 {
                let skipped = place.rest.min(left.len());
                place.rest -= skipped;
                seen.bytes += skipped;
                continue;
            }
            let taken = (place.head.len() - place.have).min(left.len());
            place.head[place.have..place.have + taken].copy_from_slice(&left[..taken]);
            if place.have + taken == place.head.len() {
                if begins_call(place) && !may_begin() {
                    return seen;
                }
                place.have = 0;
                count(place, &mut seen);
            } else {
                place.have += taken;
            }
            seen.bytes += taken;
        }
        seen
    }
}

/// Whether the frame whose head is whole begins a call.
fn begins_call(place: &Place) -> bool {
    place.head[3] == HEADERS && place.stream() > place.highest
}

/// Counts a frame whose head is whole.
fn count(place: &mut Place, seen: &mut Seen) {
    const DATA: u8 = 0;
    const CONTINUATION: u8 = 9;
    const END_STREAM: u8 = 1;
    let [high, middle, low, kind, flags, ..] = place.head;
    let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    place.rest = length;
    let block = u32::try_from(length.saturating_sub(PLAIN_BLOCK) / BLOCK_BYTES_PER_FRAME).unwrap_or(u32::MAX);
    match kind {
        DATA if length >= TINY_DATA || flags & END_STREAM != 0 => {}
        HEADERS if begins_call(place) => {
            place.highest = place.stream();
            seen.calls += 1;
            seen.turn += block;
        }
        // Trailers. No client of gRPC sends any, and each byte may be a field.
        HEADERS => {
            seen.control += 1 + u32::try_from(length).unwrap_or(u32::MAX);
            seen.turn += 1 + block;
        }
        CONTINUATION => {
            seen.control += 1;
            seen.turn += 1 + block;
        }
        _ => {
            seen.control += 1;
            seen.turn += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        frame_of(kind, flags, 1, length)
    }

    fn frame_of(kind: u8, flags: u8, stream: u8, length: usize) -> Vec<u8> {
        let [_, high, middle, low] = u32::try_from(length).expect("short").to_be_bytes();
        let mut frame = vec![high, middle, low, kind, flags, 0, 0, 0, stream];
        frame.resize(9 + length, 7);
        frame
    }

    fn scanned_in_pieces(wire: &[u8], length: usize) -> Seen {
        let mut scan = FrameScan::default();
        wire.chunks(length).map(|piece| scan.scan(piece, || true)).fold(Seen::default(), |sum, seen| Seen {
            control: sum.control + seen.control,
            calls: sum.calls + seen.calls,
            bytes: sum.bytes + seen.bytes,
            turn: sum.turn + seen.turn,
        })
    }

    fn scanned(wire: &[u8]) -> Seen {
        FrameScan::default().scan(wire, || true)
    }

    #[test]
    fn calls_and_their_bodies_are_no_frames_of_control() {
        let wire = [frame(1, 4, 40), frame(0, 1, 5), frame(0, 0, 100)].concat();
        assert_eq!(scanned(&wire), Seen { control: 0, calls: 1, bytes: wire.len(), turn: 0 });
    }

    #[test]
    fn everything_else_is_and_so_are_tiny_pieces_of_bodies() {
        let wire =
            [frame(4, 0, 6), frame(6, 0, 8), frame(8, 0, 4), frame(3, 0, 4), frame(0, 0, 1), frame(99, 0, 0)].concat();
        assert_eq!(scanned(&wire), Seen { control: 6, calls: 0, bytes: wire.len(), turn: 6 });
    }

    proptest! {
        #[test]
        fn frames_are_counted_the_same_however_they_are_cut(
            frames in proptest::collection::vec((0_u8..12, 0_u8..2, 0_usize..2_000), 1..20), cut in 1_usize..300,
        ) {
            let wire: Vec<u8> = frames.into_iter().flat_map(|(kind, flags, length)| frame(kind, flags, length)).collect();
            let whole = scanned(&wire);
            prop_assert_eq!(scanned_in_pieces(&wire, cut), whole);
        }
    }

    #[test]
    fn trailers_are_no_call_and_cost_what_fields_do() {
        let wire = [frame(1, 4, 40), frame(1, 5, 1_000)].concat();
        let seen = scanned(&wire);
        assert_eq!((seen.calls, seen.control), (1, 1_001));
    }

    #[test]
    fn a_block_of_many_fields_is_work_even_if_it_is_short() {
        let of_450_references = frame(1, 5, 590);
        assert!(scanned(&of_450_references).turn > 25);
    }

    #[test]
    fn a_call_that_may_not_begin_waits_whole_however_it_is_cut() {
        let call = |stream| [frame_of(1, 4, stream, 40), frame_of(0, 1, stream, 5)].concat();
        let wire = [call(1), call(3), call(5)].concat();
        let (first, all) = (wire.len() / 3, wire.len());
        for cut in 0..9 {
            let (mut scan, mut left) = (FrameScan::default(), 1);
            let mut may = || std::mem::replace(&mut left, 0) > 0;
            let before = scan.scan(&wire[..first + cut], &mut may);
            let seen = scan.scan(&wire[first + cut..], &mut may);
            assert_eq!((before.bytes, seen.bytes, scan.0.have), (first + cut, 0, cut));
            let seen = scan.scan(&wire[first + cut..], || true);
            assert_eq!((seen.calls, seen.bytes), (2, all - first - cut));
        }
    }
}
