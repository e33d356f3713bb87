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
    /// The head of a frame, and its payload up to the end of its error code.
    begin: [u8; HEAD + CODE_END],
    /// How much of that has been written.
    have: usize,
    /// How much of the frame before is still to be written.
    rest: usize,
}

impl ErrorScan {
    /// Reads a piece, and adds the errors in it.
    pub(crate) fn scan(&mut self, mut bytes: &[u8], found: &mut Vec<ReportedError>) {
        while !bytes.is_empty() {
            if self.rest > 0 {
                let passed = self.rest.min(bytes.len());
                self.rest -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let taken = (self.wanted() - self.have).min(bytes.len());
            self.begin[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == self.wanted() {
                self.end_frame(found);
            }
        }
    }

    /// How many of the first bytes of the frame tell whether it reports an error.
    fn wanted(&self) -> usize {
        match self.begin[3] {
            RST_STREAM if self.have >= HEAD => HEAD + CODE_END - 4,
            GOAWAY if self.have >= HEAD => HEAD + CODE_END,
            _ => HEAD,
        }
    }

    fn end_frame(&mut self, found: &mut Vec<ReportedError>) {
        let [high, middle, low, kind, ..] = self.begin;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if self.have > HEAD {
            let code = self.begin[..self.have].last_chunk().map_or(0, |code| u32::from_be_bytes(*code));
            let reason = Reason::from(code);
            if !NO_ERRORS.contains(&reason) {
                found.push(ReportedError { reason, of_connection: kind == GOAWAY });
            }
        }
        *self = Self { rest: (HEAD + length).saturating_sub(self.have), ..Self::default() };
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
