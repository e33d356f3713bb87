//! HTTP/2 errors that this side reports: the `RST_STREAM` and GOAWAY frames in the bytes that it writes.
//!
//! `h2` answers a malformed request by itself and tells its user nothing. So the frames are read where they leave.

use h2::Reason;

const HEAD: usize = 9;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// Bytes of a frame's payload up to the end of its error code: a GOAWAY begins with the last stream.
const CODE_END: usize = 8;

/// Reasons that are no errors: streams that end early on both sides' wish.
const NO_ERRORS: [Reason; 2] = [Reason::NO_ERROR, Reason::CANCEL];

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
    head: [u8; HEAD],
    /// How much of the head has been written.
    have: usize,
    payload: [u8; CODE_END],
    /// How much of the payload has been written.
    written: usize,
    /// Length of the payload; None before the head is whole.
    length: Option<usize>,
    /// How much of a frame without an error is still to be written.
    skip: usize,
}

impl ErrorScan {
    /// Reads a piece, and adds the errors in it.
    pub(crate) fn scan(&mut self, mut bytes: &[u8], found: &mut Vec<ReportedError>) {
        while !bytes.is_empty() {
            if self.have == 0 {
                self.skip += end_of_harmless(bytes.get(self.skip..).unwrap_or_default());
            }
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let Some(length) = self.length else {
                let taken = (HEAD - self.have).min(bytes.len());
                self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
                self.have += taken;
                bytes = &bytes[taken..];
                if self.have == HEAD {
                    let [high, middle, low, ..] = self.head;
                    self.length = Some(usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low));
                    self.end_frame(found);
                }
                continue;
            };
            let taken = (length - self.written).min(bytes.len());
            if self.written < CODE_END {
                let kept = taken.min(CODE_END - self.written);
                self.payload[self.written..self.written + kept].copy_from_slice(&bytes[..kept]);
            }
            self.written += taken;
            bytes = &bytes[taken..];
            self.end_frame(found);
        }
    }

    fn end_frame(&mut self, found: &mut Vec<ReportedError>) {
        if self.length != Some(self.written) {
            return;
        }
        let code_at = match self.head[3] {
            RST_STREAM => Some(0),
            GOAWAY => Some(CODE_END - 4),
            _ => None,
        };
        if let Some(code_at) = code_at {
            let code = self.payload[code_at..].iter().take(4).fold(0, |code, byte| code << 8 | u32::from(*byte));
            let (reason, of_connection) = (Reason::from(code), self.head[3] == GOAWAY);
            if !NO_ERRORS.contains(&reason) {
                found.push(ReportedError { reason, of_connection });
            }
        }
        *self = Self::default();
    }
}

/// Where a frame ends that begins here and reports no error; 0 if it may report one, or its head is not whole.
fn end_of_harmless(bytes: &[u8]) -> usize {
    match bytes {
        [_, _, _, RST_STREAM | GOAWAY, ..] => 0,
        [high, middle, low, _, _, _, _, _, _, ..] => {
            HEAD + (usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low))
        }
        _ => 0,
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
