//! How a call ends: a code, a text, and what travels with them as trailers.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};

use crate::ledger::{Kind, Over};

/// gRPC's status codes, those that the engine itself ends calls with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unauthenticated = 16,
}

/// A status with which the engine itself ends a call.
#[derive(Debug, Clone)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) text: Cow<'static, str>,
    /// What programs read of it, as it travels.
    pub(crate) details: Option<HeaderValue>,
    /// After how many milliseconds a retry helps.
    pub(crate) pushback: Option<HeaderValue>,
}

impl Status {
    pub(crate) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into(), details: None, pushback: None }
    }

    /// Of a call whose request should have one message.
    pub(crate) fn no_whole_message() -> Self {
        Self::new(Code::Internal, "the request holds no whole message")
    }

    /// Of a call whose time is over.
    pub(crate) fn deadline_exceeded() -> Self {
        Self::new(Code::DeadlineExceeded, "Deadline Exceeded")
    }

    fn told(code: Code, (text, details, pushback_millis): Explanation) -> Self {
        let details = Some(details).filter(|details| !details.is_empty());
        let details = details.and_then(|details| HeaderValue::from_maybe_shared(Bytes::from(details)).ok());
        Self { details, pushback: pushback_millis.map(HeaderValue::from), ..Self::new(code, text) }
    }

    pub(crate) fn trailers(&self) -> HeaderMap {
        let mut trailers = trailers(self.code as u8, &self.text);
        if self.code == Code::Unimplemented {
            trailers.insert(GRPC_ACCEPT_ENCODING, HeaderValue::from_static("identity,deflate,gzip"));
        }
        if let Some(details) = &self.details {
            trailers.insert(GRPC_STATUS_DETAILS, details.clone());
        }
        if let Some(pushback) = &self.pushback {
            trailers.insert(GRPC_RETRY_PUSHBACK, pushback.clone());
        }
        trailers
    }
}

/// An explanation for a client: a text, the trailer `grpc-status-details-bin` as it travels, and after how many milliseconds a
/// retry helps (`grpc-retry-pushback-ms`). Without that, the client decides.
pub type Explanation = (String, Vec<u8>, Option<u32>);

/// The kinds whose limits can refuse a call.
const LIMITED: [Kind; 4] = [Kind::Calls, Kind::HealthCalls, Kind::ReflectionCalls, Kind::BytesIn];

/// What calls are told that the engine itself ends, in the words of the name server.
#[derive(Debug)]
pub struct Statuses {
    /// All callers together hold as much as they may, of each of `LIMITED`.
    in_all: [Status; 4],
    /// The address of the caller holds as much as one may.
    of_address: [Status; 4],
    /// The certificate of its connection is no longer accepted.
    pub(crate) refused_certificate: Status,
}

impl Statuses {
    /// The explanations of limits are for calls, calls of health, calls of reflection, and bytes of requests.
    #[must_use]
    pub fn new(in_all: [Explanation; 4], of_address: [Explanation; 4], refused_certificate: Explanation) -> Self {
        let exhausted = |told| Status::told(Code::ResourceExhausted, told);
        Self {
            in_all: in_all.map(exhausted),
            of_address: of_address.map(exhausted),
            refused_certificate: Status::told(Code::Unauthenticated, refused_certificate),
        }
    }

    /// The status of a call that a limit leaves no capacity.
    pub(crate) fn over(&self, kind: Kind, over: Over) -> Status {
        let by_kind = match over {
            Over::InAll(_) => &self.in_all,
            Over::OfAddress(_) => &self.of_address,
        };
        by_kind[LIMITED.iter().position(|limited| *limited == kind).unwrap_or_default()].clone()
    }
}

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// A status as trailers.
#[must_use]
pub fn trailers(code: u8, text: &str) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code)));
    if !text.is_empty() {
        if let Ok(encoded) = HeaderValue::from_maybe_shared(percent_encoded(text)) {
            trailers.insert(GRPC_MESSAGE, encoded);
        }
    }
    trailers
}

/// The head of an answer that carries these fields: none, or a status and nothing else.
pub(crate) fn head_with(mut fields: HeaderMap) -> http::Response<()> {
    fields.insert(CONTENT_TYPE, GRPC);
    let mut response = http::Response::new(());
    *response.headers_mut() = fields;
    response
}

/// Text as grpc-message carries it: printable ASCII but for the percent sign, all else as UTF-8 by %XX.
fn percent_encoded(text: &str) -> Bytes {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = BytesMut::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x20..0x7F).contains(&byte) && byte != b'%' {
            encoded.put_u8(byte);
        } else {
            encoded.put_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    encoded.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Statuses {
        pub(crate) fn unknown() -> Self {
            let told = |text: &str| (text.to_owned(), Vec::new(), None);
            Self::new(
                [(); 4].map(|()| told("too much")),
                [(); 4].map(|()| told("too much of one address")),
                told("certificate"),
            )
        }
    }

    #[test]
    fn a_text_travels_percent_encoded_if_there_is_one() {
        assert_eq!(trailers(0, "").len(), 1);
        let trailers = trailers(3, "50 % of \u{e4}\n");
        assert_eq!(trailers["grpc-status"], "3");
        assert_eq!(trailers["grpc-message"], "50 %25 of %C3%A4%0A");
    }

    #[test]
    fn a_status_says_when_a_retry_helps_if_one_does() {
        let never = Status::new(Code::ResourceExhausted, "too much");
        let soon = Status { pushback: Some(HeaderValue::from(1000)), ..never.clone() };
        assert_eq!(soon.trailers()["grpc-retry-pushback-ms"], "1000");
        assert!(!never.trailers().contains_key("grpc-retry-pushback-ms"));
    }
}
