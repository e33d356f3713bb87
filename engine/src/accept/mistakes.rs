//! The mistakes of clients that connect, and their remedies.
//!
//! The kinds are the events in the log of the name server; `docs/logs.md` lists them.

use std::io;
use std::sync::atomic::Ordering;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};

use crate::accept::proxy::SIGNATURE;
use crate::peer::Peer;
use crate::shared::Shared;
use crate::wire::PREFACE;

/// The first byte of TLS.
const TLS_HANDSHAKE: u8 = 22;

const HTTP_1_METHODS: [&[u8]; 6] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS "];

/// How the paths of the calls of `RocketMQ` 5's proxy begin.
const PROXY_CALLS: &str = "/apache.rocketmq.v2.";

/// The mistake of a client that offers no HTTP/2 in a handshake.
const NO_HTTP_2: (&str, &str) = (
    "no_http2",
    "the client offers no HTTP/2 (ALPN h2), which gRPC needs; is it a client of gRPC, and does something between the \
     two terminate TLS?",
);

/// As many bytes as are looked at to know what a client speaks.
pub(crate) const TELLING: usize = 12;

/// A mistake of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The event in the log.
    pub(crate) kind: &'static str,
    /// What it is, and what to do.
    pub(crate) text: String,
}

impl Mistake {
    pub(crate) fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Counts a connection that ends because its client makes this mistake, and logs it.
    pub(crate) fn refuse(&self, peer: &Peer, shared: &Shared) {
        shared.counts.refused_connections.fetch_add(1, Ordering::Relaxed);
        shared.notices.tell(self.kind, &peer.address, &self.text);
    }
}

/// The transport of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// No TLS, and there is none here.
    Plain,
    /// TLS, and the client offered HTTP/2 in it.
    Tls,
    /// TLS, in which the client offered no protocol.
    TlsWithoutAlpn,
    /// No TLS, though it is wanted here.
    TlsMissing,
}

impl Carrier {
    /// Whether HTTP/2 may be spoken over it here.
    pub(crate) fn may_carry(self) -> bool {
        matches!(self, Self::Plain | Self::Tls)
    }
}

/// Whether the first byte is one of TLS.
pub(crate) fn begins_tls(byte: u8) -> bool {
    byte == TLS_HANDSHAKE
}

/// Whether these are the first bytes of a request of HTTP/1.
pub(crate) fn is_http_1(came: &[u8]) -> bool {
    HTTP_1_METHODS.iter().any(|method| came.starts_with(method))
}

/// Whether a load balancer sends these first bytes: version 1 or 2 of the PROXY protocol.
fn begins_proxy_preamble(came: &[u8]) -> bool {
    came.starts_with(b"PROXY ") || came.starts_with(SIGNATURE)
}

/// Whether these are the first bytes of a frame of `RocketMQ`'s protocol: its length, the encoding and length of its
/// header, and the header.
fn is_remoting(came: &[u8]) -> bool {
    let &[l0, l1, l2, l3, encoding, h1, h2, h3, first, ..] = came else { return false };
    let (length, header) = (u32::from_be_bytes([l0, l1, l2, l3]), u32::from_be_bytes([0, h1, h2, h3]));
    l0 == 0 && header > 0 && header + 4 <= length && (encoding == 0 && first == b'{' || encoding == 1)
}

/// Returns the mistake of a client that calls an unknown method, or None if the method is of no service known here.
pub(crate) fn of_unknown_call(path: &str) -> Option<Mistake> {
    let text = "this is a name server; give the client the address of RocketMQ's proxy";
    path.starts_with(PROXY_CALLS).then(|| Mistake::new("client_of_rocketmq_proxy", text))
}

/// The mistake of a client that ends the connection before it sends anything over TLS.
fn broken_off(how: &str) -> Mistake {
    let text = "the client ended the connection in or right after the handshake, as those do that do not accept our \
                certificate; it says itself why";
    Mistake::new("handshake_broken_off", format!("{text} ({how})"))
}

/// Returns the mistake of a client with these first bytes, or None: it makes none, or sent too little.
pub(crate) fn of_greeting(came: &[u8], went: bool, carrier: Carrier) -> Option<Mistake> {
    if came.is_empty() && went && carrier == Carrier::Tls {
        return Some(broken_off("after it"));
    }
    if carrier.may_carry() && PREFACE.starts_with(came) {
        return None;
    }
    let (kind, text) = if is_remoting(came) {
        let text = "a client of RocketMQ's own protocol came to gRPC's port; give it the address of --remoting-listen";
        ("client_speaks_remoting", text)
    } else if is_http_1(came) {
        let text = "a client speaks HTTP/1.1; this port speaks gRPC, which is HTTP/2, alone (metrics and probes have \
                    --metrics-listen)";
        ("client_speaks_http_1", text)
    } else if begins_proxy_preamble(came) {
        let text = "a load balancer sends the PROXY protocol, which this port does not take; switch it off at the load balancer";
        ("client_sends_proxy_protocol", text)
    } else if carrier == Carrier::TlsWithoutAlpn {
        NO_HTTP_2
    } else if carrier == Carrier::TlsMissing {
        ("client_speaks_no_tls", "a client speaks no TLS, which this port wants; give the client tls_ca")
    } else if came.first().copied().is_some_and(begins_tls) && carrier == Carrier::Plain {
        let text = "a client speaks TLS, and this listener has none: set tls_cert and tls_key here, or take tls_ca from the client";
        ("client_speaks_tls", text)
    } else {
        ("client_speaks_no_http_2", "a client speaks neither HTTP/2 nor anything else that is known here")
    };
    Some(Mistake::new(kind, text))
}

/// What a client speaks that comes to the port of `RocketMQ`'s protocol, and its remedy; None if that is not known.
pub(crate) fn of_foreign(came: &[u8]) -> Option<&'static str> {
    if came.starts_with(b"PRI * HT") {
        Some("a client of gRPC, which is served at --listen")
    } else if is_http_1(came) {
        Some("an HTTP client; metrics and probes are at --metrics-listen")
    } else if begins_proxy_preamble(came) {
        Some("a load balancer that sends the PROXY protocol; name its network in --remoting-proxies")
    } else if came.starts_with(b"\x16\x03") {
        Some("it speaks TLS, which this port does not: see --remoting-tls and --tls-cert")
    } else {
        None
    }
}

/// What is wrong with a client whose handshake failed.
pub(crate) fn of_handshake(error: &io::Error) -> Mistake {
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return broken_off(&error.to_string());
    };
    let text = match tls {
        Error::NoCertificatesPresented => {
            let text = "the client shows no certificate, which tls_client_ca asks for; give it tls_cert and tls_key";
            return Mistake::new("client_without_certificate", text);
        }
        Error::InvalidCertificate(problem) => {
            return Mistake::new("client_certificate_refused", of_certificate(problem));
        }
        Error::AlertReceived(alert) => match of_alert(*alert) {
            Some(text) => return Mistake::new("our_certificate_refused", text),
            None => format!("the client ended the handshake of TLS: {alert:?}"),
        },
        Error::NoApplicationProtocol => return Mistake::new(NO_HTTP_2.0, NO_HTTP_2.1),
        Error::PeerIncompatible(problem) => format!(
            "client and server have no version or cipher of TLS in common ({problem:?}); this port has TLS 1.2 and 1.3"
        ),
        other => format!("the handshake of TLS failed: {other}"),
    };
    Mistake::new("handshake_failed", text)
}

/// What is wrong with the certificate of a client.
fn of_certificate(problem: &CertificateError) -> String {
    let text = match problem {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has ended; renew it where the client runs"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; compare the clocks of both machines"
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is of an authority that tls_client_ca does not have; see who signed it"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for clients (its extended key usage); have one signed that is"
        }
        _ => return format!("the client's certificate is refused: {problem}"),
    };
    format!("the client's certificate {text}")
}

/// Returns what a client says of the server's certificate; None if it says something else.
fn of_alert(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::UnknownCA => {
            Some("the client does not know the authority of our certificate; give it that as tls_ca")
        }
        AlertDescription::CertificateExpired => Some("the client says that our certificate has ended; renew tls_cert"),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked => Some(
            "the client does not accept our certificate: its tls_ca may be of another authority, ours may have ended, or \
             be for another name than the one it calls",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(came: &[u8], carrier: Carrier) -> Option<&'static str> {
        of_greeting(came, true, carrier).map(|mistake| mistake.kind)
    }

    #[test]
    fn what_a_client_speaks_is_told_from_its_first_bytes() {
        use Carrier::{Plain, Tls, TlsMissing, TlsWithoutAlpn};
        let json = b"\0\0\0\x40\0\0\0\x30{\"co";
        let binary = b"\0\0\0\x40\x01\0\0\x30\0\x69\0\0";
        for (came, carrier, kind) in [
            (&PREFACE[..], Plain, None),
            (PREFACE, Tls, None),
            (PREFACE, TlsMissing, Some("client_speaks_no_tls")),
            (PREFACE, TlsWithoutAlpn, Some("no_http2")),
            (b"", Plain, None), // it only looked whether the port is open
            (b"", Tls, Some("handshake_broken_off")),
            (b"GET / HTTP/1.1", Plain, Some("client_speaks_http_1")),
            (b"GET / HTTP/1.1", TlsMissing, Some("client_speaks_http_1")),
            (b"GET / HTTP/1.1", TlsWithoutAlpn, Some("client_speaks_http_1")),
            (json, Plain, Some("client_speaks_remoting")),
            (binary, Plain, Some("client_speaks_remoting")),
            (json, TlsMissing, Some("client_speaks_remoting")),
            (json, TlsWithoutAlpn, Some("client_speaks_remoting")),
            (&json[..8], Plain, Some("client_speaks_no_http_2")),
            (b"\0\0\0\x10\0\0\0\x30{\"co", Plain, Some("client_speaks_no_http_2")),
            (b"\x16\x03\x01", Plain, Some("client_speaks_tls")),
            (b"\x16\x03\x01", Tls, Some("client_speaks_no_http_2")),
            (b"\0\0\0\0", TlsMissing, Some("client_speaks_no_tls")),
            (b"PROXY TCP4 10", Plain, Some("client_sends_proxy_protocol")),
            (b"\r\n\r\n\0\r\nQUIT\n", TlsMissing, Some("client_sends_proxy_protocol")),
        ] {
            assert_eq!(kind_of(came, carrier), kind, "{came:?} {carrier:?}");
        }
    }

    #[test]
    fn each_failure_of_a_handshake_says_what_to_look_at() {
        let mistake = |error: Error| of_handshake(&io::Error::new(io::ErrorKind::InvalidData, error));
        for (error, kind, word) in [
            (Error::NoCertificatesPresented, "client_without_certificate", "give it tls_cert"),
            (CertificateError::Expired.into(), "client_certificate_refused", "has ended"),
            (CertificateError::NotValidYet.into(), "client_certificate_refused", "clocks"),
            (CertificateError::UnknownIssuer.into(), "client_certificate_refused", "tls_client_ca does not have"),
            (CertificateError::InvalidPurpose.into(), "client_certificate_refused", "not for clients"),
            (CertificateError::Revoked.into(), "client_certificate_refused", "is refused"),
            (Error::AlertReceived(AlertDescription::UnknownCA), "our_certificate_refused", "tls_ca"),
            (Error::AlertReceived(AlertDescription::CertificateExpired), "our_certificate_refused", "renew tls_cert"),
            (Error::AlertReceived(AlertDescription::BadCertificate), "our_certificate_refused", "another name"),
            (Error::AlertReceived(AlertDescription::InternalError), "handshake_failed", "InternalError"),
            (Error::NoApplicationProtocol, "no_http2", "ALPN h2"),
            (Error::General("odd".into()), "handshake_failed", "odd"),
        ] {
            let mistake = mistake(error);
            assert_eq!(mistake.kind, kind);
            assert!(mistake.text.contains(word), "{mistake:?}");
        }
        assert_eq!(of_handshake(&io::ErrorKind::ConnectionReset.into()).kind, "handshake_broken_off");
    }
}
