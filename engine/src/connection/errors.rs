//! HTTP/2 errors that this side reports: the `RST_STREAM` and GOAWAY frames in the bytes that it writes.
//!
//! `h2` answers a malformed request by itself and tells its user nothing. So the frames are read where they leave.

use h2::Reason;

use crate::connection::scan::{Frames, Piece};

const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("short");
        [&[0, 0, length, kind, 0, 0, 0, 0, 1][..], payload].concat()
    }

    proptest! {
        #[test]
        fn resets_and_farewells_with_an_error_are_found_however_the_writes_are_cut(cut in 1_usize..40) {
            let wire = [
                frame(4, &[]),
                frame(RST_STREAM, &[0, 0, 0, 1]),
                frame(0, &[7; 100]),
                frame(RST_STREAM, &[0, 0, 0, 8]),
                frame(GOAWAY, &[0, 0, 0, 9, 0, 0, 0, 0]),
                frame(1, &[RST_STREAM; 30]),
                frame(GOAWAY, &[0, 0, 0, 9, 0, 0, 0, 11, b'x', b'y']),
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
