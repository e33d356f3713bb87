//! Frames: a length of four bytes, the encoding of the header in one byte, its length in three, the header, the body.
//!
//! Every length is checked before anything is made of it.

use crate::accept::mistakes::of_foreign;

/// Bytes before the header.
pub(crate) const PREFIX: usize = 8;

/// Bytes of the length, which it does not count.
const LENGTH: usize = 4;

/// Largest frame, its length included (`RocketMQ`: `NettyEncoder`'s `FRAME_MAX_LENGTH`).
pub(crate) const MAX_FRAME: usize = 16 << 20;

/// Largest header: it carries the largest value of the KV configuration, with every character escaped.
const MAX_HEADER: usize = 512 << 10;

/// A JSON header (`RocketMQ`: `SerializeType`).
pub(crate) const JSON: u8 = 0;

/// A binary header.
pub(crate) const BINARY: u8 = 1;

/// Where the parts of a whole frame end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) encoding: u8,
    pub(crate) header_end: usize,
    pub(crate) end: usize,
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// A frame.
    Whole(Frame),
    /// A part of a frame.
    Part,
    /// No bytes.
    Nothing,
}

/// Finds the first frame. Fails, in words, if the bytes are no frame.
pub(crate) fn first_of(bytes: &[u8]) -> Result<Cut, String> {
    let Some(&[l0, l1, l2, l3, encoding, h1, h2, h3]) = bytes.first_chunk() else {
        return Ok(if bytes.is_empty() { Cut::Nothing } else { Cut::Part });
    };
    let (length, header) = (u32::from_be_bytes([l0, l1, l2, l3]), u32::from_be_bytes([0, h1, h2, h3]));
    let (length, header) = (length as usize, header as usize);
    if length < header + LENGTH || length > MAX_FRAME - LENGTH {
        let other = of_foreign(bytes).map(str::to_owned);
        return Err(other.unwrap_or_else(|| format!("a frame of {length} bytes with a header of {header}")));
    }
    if header > MAX_HEADER {
        return Err(format!("a header of {header} bytes, at most {MAX_HEADER}"));
    }
    let frame = Frame { encoding, header_end: PREFIX + header, end: LENGTH + length };
    Ok(if bytes.len() < frame.end { Cut::Part } else { Cut::Whole(frame) })
}

/// The eight bytes before a header.
pub(crate) fn prefix(encoding: u8, header: usize, body: usize) -> [u8; PREFIX] {
    // The lengths are far below these limits: Python limits its answers.
    let length = u32::try_from(LENGTH + header + body).unwrap_or(u32::MAX).to_be_bytes();
    let [_, h1, h2, h3] = u32::try_from(header).unwrap_or(u32::MAX).to_be_bytes();
    let [l0, l1, l2, l3] = length;
    [l0, l1, l2, l3, encoding, h1, h2, h3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(encoding: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
        [&prefix(encoding, header.len(), body.len()), header, body].concat()
    }

    #[test]
    fn the_largest_frame_and_header_are_taken_and_larger_ones_refused() {
        let declared = |length: usize, header: usize| first_of(&[prefix(JSON, header, length - header)].concat());
        assert_eq!(declared(MAX_FRAME - 8, 2), Ok(Cut::Part));
        assert!(declared(MAX_FRAME - 7, 2).expect_err("too large").starts_with("a frame of 16777213 bytes"));
        assert_eq!(declared(MAX_HEADER, MAX_HEADER), Ok(Cut::Part));
        let problem = declared(MAX_HEADER + 1, MAX_HEADER + 1).expect_err("too large");
        assert_eq!(problem, "a header of 524289 bytes, at most 524288");
    }

    proptest! {
        #[test]
        fn a_frame_is_found_once_it_is_whole(
            header in proptest::collection::vec(any::<u8>(), 0..60),
            body in proptest::collection::vec(any::<u8>(), 0..60),
            encoding in any::<u8>(),
            more in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let bytes = frame(encoding, &header, &body);
            for end in 1..bytes.len() {
                prop_assert_eq!(first_of(&bytes[..end]), Ok(Cut::Part));
            }
            let found = Cut::Whole(Frame { encoding, header_end: PREFIX + header.len(), end: bytes.len() });
            prop_assert_eq!(first_of(&[bytes, more].concat()), Ok(found));
        }
    }
}
