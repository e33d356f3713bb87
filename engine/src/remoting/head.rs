//! The head of a request: its code, its sender's version, and its number (opaque), which the answer repeats.
//!
//! Two requests that are equal apart from this number get the same answer, apart from it. So a header without it is the key of
//! an answer that is kept. A JSON header is only read in the form in which `RocketMQ` writes it, with its members in
//! alphabetical order. Python reads every other one.

use std::io::Write as _;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use crate::remoting::frame::{BINARY, JSON};

/// What precedes and follows the number in a JSON header of a request, up to the digits of the version.
const BEFORE: &[u8] = b",\"opaque\":";
const AFTER: &[u8] = b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":";
const BEGIN: &[u8] = b"{\"code\":";

/// What precedes the number in the JSON header of an answer. A quote in a text is escaped, so no text has this.
const OWN_BEFORE: &[u8] = b",\"language\":\"JAVA\",\"opaque\":";

/// Bytes of the fixed part of a binary header: code, language, version, opaque, flag, and two lengths.
const FIXED: usize = 21;
const OPAQUE: Range<usize> = 5..9;

/// The head of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) code: i32,
    /// Its sender's, as `RocketMQ` counts them.
    pub(crate) version: i32,
    pub(crate) opaque: i32,
    /// Where the number is written in the header.
    pub(crate) at: Range<usize>,
}

impl Head {
    /// Reads a header. None if it has another form.
    pub(crate) fn of(encoding: u8, header: &[u8]) -> Option<Self> {
        match encoding {
            JSON => Self::of_json(header),
            BINARY => Self::of_binary(header),
            _ => None,
        }
    }

    /// Adds the header without the number.
    pub(crate) fn key_into(&self, encoding: u8, header: &[u8], key: &mut impl BufMut) {
        key.put_u8(encoding);
        key.put_slice(&header[..self.at.start]);
        key.put_slice(&header[self.at.end..]);
    }

    fn of_json(header: &[u8]) -> Option<Self> {
        let code = header.strip_prefix(BEGIN)?;
        let digits = code.iter().position(|byte| *byte == b',')?;
        let head = header.strip_suffix(b"}")?;
        let digits_of_version = head.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (head, version) = head.split_at(head.len() - digits_of_version);
        let (head, version) = (head.strip_suffix(AFTER)?, number(version)?);
        let opaque = head.iter().rev().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
        let at = head.len() - opaque..head.len();
        head[..at.start].strip_suffix(BEFORE)?;
        Some(Self { code: number(&code[..digits])?, version, opaque: number(&head[at.clone()])?, at })
    }

    fn of_binary(header: &[u8]) -> Option<Self> {
        let fixed: &[u8; FIXED] = header.first_chunk()?;
        let &[c0, c1, _, v0, v1, o0, o1, o2, o3, ..] = fixed;
        let (code, version) = (i16::from_be_bytes([c0, c1]).into(), i16::from_be_bytes([v0, v1]).into());
        Some(Self { code, version, opaque: i32::from_be_bytes([o0, o1, o2, o3]), at: OPAQUE })
    }
}

/// Whether the header of an answer that Python encoded has the code 0.
pub(crate) fn is_success(encoding: u8, header: &[u8]) -> bool {
    let success: &[u8] = if encoding == BINARY { b"\0\0" } else { b"{\"code\":0," };
    header.starts_with(success)
}

/// Where the number is in the header of an answer that Python encoded.
pub(crate) fn opaque_in_answer(encoding: u8, header: &[u8]) -> Option<Range<usize>> {
    if encoding == BINARY {
        return (header.len() >= FIXED).then_some(OPAQUE);
    }
    let start = header.windows(OWN_BEFORE.len()).position(|window| window == OWN_BEFORE)? + OWN_BEFORE.len();
    let digits = header[start..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
    Some(start..start + digits)
}

/// The header of a request without its number, after other bytes. None for a form that only Python reads.
pub(crate) fn key_of(begin: &[u8], encoding: u8, header: &[u8]) -> Option<Bytes> {
    let head = Head::of(encoding, header)?;
    let mut key = BytesMut::with_capacity(begin.len() + 1 + header.len());
    key.put_slice(begin);
    head.key_into(encoding, header, &mut key);
    Some(key.freeze())
}

/// The number as it is written in a header, and how many of these bytes it has.
pub(crate) fn written(encoding: u8, opaque: i32) -> ([u8; 11], usize) {
    let mut bytes = [0; 11];
    if encoding == BINARY {
        bytes[..4].copy_from_slice(&opaque.to_be_bytes());
        return (bytes, 4);
    }
    let mut rest = &mut bytes[..];
    let _ = write!(rest, "{opaque}"); // no number is longer
    let length = 11 - rest.len();
    (bytes, length)
}

/// A number of 32 bits as JSON writes it.
fn number(digits: &[u8]) -> Option<i32> {
    let text = std::str::from_utf8(digits).ok()?;
    let parsed = text.parse().ok()?;
    let (bytes, length) = written(JSON, parsed);
    (bytes[..length] == *digits).then_some(parsed) // not +1, -0 or 007
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lookup(opaque: &str) -> String {
        format!(
            "{{\"code\":105,\"extFields\":{{\"topic\":\"a\"}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{opaque},\
             \"serializeTypeCurrentRPC\":\"JSON\",\"version\":513}}"
        )
    }

    #[test]
    fn a_header_of_rocketmq_has_its_code_and_number() {
        for opaque in ["0", "7", "-1", "2147483647", "-2147483648"] {
            let header = lookup(opaque);
            let head = Head::of(JSON, header.as_bytes()).expect("as RocketMQ writes it");
            assert_eq!((head.code, head.version, head.opaque.to_string().as_str()), (105, 513, opaque));
            assert_eq!(&header[head.at], opaque);
        }
        let binary = [&[0, 105, 0, 2, 1, 0xff, 0xff, 0xff, 0xfe][..], &[0; 12]].concat();
        assert_eq!(Head::of(BINARY, &binary), Some(Head { code: 105, version: 513, opaque: -2, at: 5..9 }));
    }

    #[test]
    fn headers_of_another_form_are_left_to_python() {
        for opaque in ["", "-", "+1", "01", "-0", "2147483648", "1.5", "\"1\"", " 1", "1e3"] {
            assert_eq!(Head::of(JSON, lookup(opaque).as_bytes()), None, "{opaque}");
        }
        let header = lookup("7");
        for other in [
            header.replace("{\"code\":105,", "{ \"code\":105,"),
            header.replace("\"version\":513}", "\"version\":513 }"),
            header.replace("\"version\":513}", "\"version\":}"),
            header.replace("\"opaque\":7,", "\"opaque\":7,\"remark\":\"\","),
            header.replace("\"code\":105", "\"code\":1050000000000"),
        ] {
            assert_eq!(Head::of(JSON, other.as_bytes()), None, "{other}");
        }
        assert_eq!(Head::of(BINARY, &[0; FIXED - 1]), None);
        assert_eq!(Head::of(7, header.as_bytes()), None);
    }

    #[test]
    fn the_number_in_an_answer_is_not_taken_from_a_text_in_it() {
        let text = r#"{"code":1,"extFields":{"x":",\"language\":\"JAVA\",\"opaque\":5"},"flag":1,"language":"JAVA","opaque":12,"remark":"x"}"#;
        assert_eq!(opaque_in_answer(JSON, text.as_bytes()).map(|at| &text[at]), Some("12"));
        assert_eq!(opaque_in_answer(JSON, b"{}"), None);
        assert_eq!(opaque_in_answer(BINARY, &[0; FIXED]), Some(5..9));
    }

    proptest! {
        #[test]
        fn a_number_is_written_as_it_is_read(opaque in any::<i32>()) {
            let (bytes, length) = written(JSON, opaque);
            prop_assert_eq!(bytes[..length].to_vec(), opaque.to_string().into_bytes());
            prop_assert_eq!(number(&bytes[..length]), Some(opaque));
        }

        #[test]
        fn a_cut_or_changed_header_is_read_at_the_number_or_not_at_all(at in 0_usize..120, byte in any::<u8>()) {
            let mut header = lookup("77").into_bytes();
            let at = at % header.len();
            header[at] = byte;
            if let Some(head) = Head::of(JSON, &header) {
                prop_assert_eq!(&header[..head.at.start][head.at.start - BEFORE.len()..], BEFORE);
            }
        }
    }
}
