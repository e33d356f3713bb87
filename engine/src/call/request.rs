//! The head of a request: what it must be to be a call, and what the engine needs to know of it.

use std::time::Duration;

use h2::RecvStream;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, StatusCode, request::Parts};

use crate::accept::mistakes::of_unknown_call;
use crate::grpc::status::{Code, Status};
use crate::peer::Peer;
use crate::shared::{Method, Shared};

/// What HTTP/2 counts for each field besides its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Longest grpc-timeout, digits.
const MAX_TIMEOUT_DIGITS: usize = 8;

/// Why a request is no call, or none that is served.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It is gRPC.
    Grpc(Status),
    /// It is not.
    Http(StatusCode),
}

/// What the engine knows of a call from its head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) method: u16,
    /// As HTTP/2 counts it.
    pub(crate) metadata_size: usize,
    pub(crate) timeout: Option<Duration>,
    /// Its caller has this call traced, and Python follows traces.
    pub(crate) sampled: bool,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Grpc(status)
    }
}

/// Looks at the head of a request.
pub(crate) fn head_of(parts: &Parts, peer: &Peer, shared: &Shared) -> Result<Head, Refusal> {
    if parts.method != http::Method::POST {
        return Err(Refusal::Http(StatusCode::METHOD_NOT_ALLOWED));
    }
    let headers = &parts.headers;
    if !headers.get(CONTENT_TYPE).is_some_and(|kind| is_grpc(kind.as_bytes())) {
        return Err(Refusal::Http(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let size = metadata_size(headers);
    let most = shared.limits.max_metadata;
    if size >= most {
        let text = format!("received metadata size exceeds limit ({size} vs. {most})");
        return Err(Status::new(Code::ResourceExhausted, text).into());
    }
    if headers.get(TE).is_none_or(|te| te != "trailers") {
        return Err(Status::new(Code::Internal, "the header te: trailers is missing").into());
    }
    let timeout = headers.get("grpc-timeout").map(|value| timeout_of(value.as_bytes())).transpose()?;
    let path = parts.uri.path();
    let Some(method) = shared.by_path.get(path) else {
        let Some(mistake) = of_unknown_call(path) else {
            return Err(Status::new(Code::Unimplemented, "Method not found!").into());
        };
        shared.notices.tell(mistake.kind, &peer.address, &mistake.text);
        return Err(Status::new(Code::Unimplemented, mistake.text).into());
    };
    Ok(Head {
        method: *method,
        metadata_size: size,
        timeout,
        sampled: shared.follows_traces && headers.get("traceparent").is_some_and(|value| is_sampled(value.as_bytes())),
    })
}

impl Head {
    pub(crate) fn of<'a>(&self, shared: &'a Shared) -> &'a Method {
        &shared.methods[usize::from(self.method)]
    }
}

/// Whether a content type is gRPC's: `application/grpc`, alone or with a format or parameters.
fn is_grpc(content_type: &[u8]) -> bool {
    content_type.strip_prefix(b"application/grpc").is_some_and(|rest| matches!(rest, [] | [b'+' | b';', ..]))
}

/// As HTTP/2 counts it.
pub(crate) fn metadata_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum()
}

fn timeout_of(value: &[u8]) -> Result<Duration, Status> {
    let refused = || {
        let shown = String::from_utf8_lossy(&value[..value.len().min(16)]).into_owned();
        Status::new(Code::Internal, format!("grpc-timeout is no time: {shown:?}"))
    };
    let Some((unit, digits)) = value.split_last() else { return Err(refused()) };
    if digits.is_empty() || digits.len() > MAX_TIMEOUT_DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return Err(refused());
    }
    let number = digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Ok(Duration::from_secs(number * 3_600)),
        b'M' => Ok(Duration::from_secs(number * 60)),
        b'S' => Ok(Duration::from_secs(number)),
        b'm' => Ok(Duration::from_millis(number)),
        b'u' => Ok(Duration::from_micros(number)),
        b'n' => Ok(Duration::from_nanos(number)),
        _ => Err(refused()),
    }
}

/// Whether a traceparent (W3C) says that its trace is recorded. Any other text counts as no.
fn is_sampled(value: &[u8]) -> bool {
    let flags = value.get(53..55).filter(|_| value.get(52) == Some(&b'-'));
    flags
        .and_then(|flags| std::str::from_utf8(flags).ok())
        .and_then(|flags| u8::from_str_radix(flags, 16).ok())
        .is_some_and(|flags| flags & 1 == 1)
}

/// Lets the client send as much again.
pub(crate) fn give_window_back(body: &mut RecvStream, bytes: usize) {
    // Fails only if more is given back than was taken.
    let _ = body.flow_control().release_capacity(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_a_number_and_a_unit() {
        for (text, expected) in [("5S", 5_000), ("200m", 200), ("2M", 120_000), ("99999999u", 99_999)] {
            assert_eq!(timeout_of(text.as_bytes()).expect("a time").as_millis(), expected);
        }
        for text in ["", "S", "5", "5s", "-1S", "123456789S", "1.5S"] {
            assert_eq!(timeout_of(text.as_bytes()).expect_err("no time").code, Code::Internal, "{text}");
        }
    }

    #[test]
    fn only_grpc_is_taken_for_grpc() {
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert!(is_grpc(kind.as_bytes()), "{kind}");
        }
        for kind in ["", "text/plain", "application/grpc-web", "application/grpc-web+proto", "application/grpcx"] {
            assert!(!is_grpc(kind.as_bytes()), "{kind}");
        }
    }

    #[test]
    fn a_trace_is_sampled_if_its_flags_say_so() {
        let of = |flags: &str| is_sampled(format!("00-{}-{}-{flags}", "a".repeat(32), "b".repeat(16)).as_bytes());
        assert!(of("01") && of("03"));
        assert!(!of("00") && !of("02") && !of("zz") && !of("") && !is_sampled(b"1"));
    }
}
