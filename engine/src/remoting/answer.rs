//! Answers that are given again to requests with other numbers.

use std::ops::Range;

use bytes::Bytes;

use crate::outgoing::Outgoing;
use crate::remoting::frame::{Cut, PREFIX, first_of, prefix};
use crate::remoting::head::{Head, is_success, opaque_in_answer, written};

/// An answer of Python's, and where the number of its request is in it.
#[derive(Debug, Clone)]
pub struct FrameAnswer {
    /// Whether it says that something does not exist: a topic, or the request itself.
    pub(crate) is_absence: bool,
    encoding: u8,
    header_end: usize,
    opaque_at: Range<usize>,
    frame: Bytes,
}

impl FrameAnswer {
    /// An answer as Python encoded it. None if the bytes are no such frame.
    #[must_use]
    pub fn of(frame: Bytes) -> Option<Self> {
        let Ok(Cut::Whole(parts)) = first_of(&frame) else { return None };
        let header = &frame[PREFIX..parts.header_end];
        let at = opaque_in_answer(parts.encoding, header)?;
        let is_absence = !is_success(parts.encoding, header);
        let opaque_at = PREFIX + at.start..PREFIX + at.end;
        Some(Self { is_absence, encoding: parts.encoding, header_end: parts.header_end, opaque_at, frame })
    }

    pub(crate) fn size(&self) -> usize {
        self.frame.len()
    }

    /// Writes it as the answer to a request with this number.
    pub(crate) fn write(&self, opaque: i32, outgoing: &mut Outgoing) {
        let Self { encoding, header_end, opaque_at, frame, .. } = self;
        let (number, length) = written(*encoding, opaque);
        let header = header_end - PREFIX + length - opaque_at.len();
        outgoing.extend(&prefix(*encoding, header, frame.len() - header_end));
        outgoing.extend(&frame[PREFIX..opaque_at.start]);
        outgoing.extend(&number[..length]);
        outgoing.push(frame.slice(opaque_at.end..));
    }
}

/// The answer to requests that arrive while the server ends: `RocketMQ`'s clients ask again over another connection.
#[derive(Debug)]
pub struct GoAway {
    /// Later versions of clients know it.
    pub later_than: i32,
    /// The answer, with each encoding of its header.
    pub answers: Vec<FrameAnswer>,
}

impl GoAway {
    /// Answers a request, if its sender knows this answer.
    pub(crate) fn write(&self, encoding: u8, header: &[u8], outgoing: &mut Outgoing) {
        let head = Head::of(encoding, header).filter(|head| head.version > self.later_than);
        let answer = self.answers.iter().find(|answer| answer.encoding == encoding);
        if let (Some(head), Some(answer)) = (head, answer) {
            answer.write(head.opaque, outgoing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::frame::{BINARY, JSON};
    use proptest::prelude::*;

    fn frame(encoding: u8, opaque: i32, body: &[u8]) -> Bytes {
        let header = if encoding == JSON {
            format!("{{\"code\":0,\"flag\":1,\"language\":\"JAVA\",\"opaque\":{opaque},\"version\":513}}").into_bytes()
        } else {
            [&[0, 0, 0, 2, 1][..], &opaque.to_be_bytes(), &[0, 0, 0, 1], &[0; 8]].concat()
        };
        [&prefix(encoding, header.len(), body.len()), &header[..], body].concat().into()
    }

    proptest! {
        #[test]
        fn an_answer_is_written_as_if_it_were_encoded_for_each_request(
            first in any::<i32>(), next in any::<i32>(), encoding in prop_oneof![Just(JSON), Just(BINARY)],
            length in prop_oneof![0_usize..100, Just(100_000)],
        ) {
            let body = vec![7; length];
            let answer = FrameAnswer::of(frame(encoding, first, &body)).expect("ours");
            let mut outgoing = Outgoing::default();
            answer.write(next, &mut outgoing);
            prop_assert_eq!(outgoing.all(), frame(encoding, next, &body));
        }
    }
}
