//! TLS of a listener: PEM in, a configuration out that offers HTTP/2 alone.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The one protocol that is spoken.
pub(crate) const ALPN: &[u8] = b"h2";

/// Sessions that clients may resume; each takes about 1 kB, since clients that show certificates get none.
const SESSIONS: usize = 4_096;

#[derive(Debug, Clone)]
pub(crate) struct ListenerTls {
    pub(crate) config: Arc<ServerConfig>,
    /// Verifies the certificates of clients. None if clients need none.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Their authorities, PEM.
    client_ca: Option<Vec<u8>>,
}

impl ListenerTls {
    /// Whether both accept the same certificates of clients.
    pub(crate) fn has_authorities_of(&self, other: &Self) -> bool {
        self.client_ca == other.client_ca
    }

    /// Whether a new connection could show this chain of certificates now.
    pub(crate) fn accepts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some(verifier) = &self.verifier else { return true };
        let Some((leaf, intermediates)) = chain.split_first() else { return false };
        verifier.verify_client_cert(leaf, intermediates, UnixTime::now()).is_ok()
    }
}

/// The TLS of a listener. Fails, in words, with what is wrong with which of the three.
pub(crate) fn listener_tls(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> Result<ListenerTls, String> {
    let chain = certificates(certificate).map_err(|error| problem("certificate", error))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| problem("key", error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| problem("protocol versions", error))?;
    let verifier = client_ca.map(|pem| verifier_of(pem, provider)).transpose();
    let verifier = verifier.map_err(|error| problem("client authorities", error))?;
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| problem("certificate and key", error))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    if verifier.is_none() {
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    } else {
        // A session keeps the client's certificate, and nothing looks at that again: it may have ended by now.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(ListenerTls { config: Arc::new(config), verifier, client_ca: client_ca.map(<[u8]>::to_vec) })
}

/// Verifies clients by these authorities.
fn verifier_of(pem: &[u8], provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem)? {
        roots.add(authority)?;
    }
    Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| error.to_string())?;
    if found.is_empty() { Err("holds no certificate".into()) } else { Ok(found) }
}

fn problem(what: &str, error: impl Display) -> String {
    format!("{what}: {error}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("makes one");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn what_is_wrong_is_said_with_which_of_the_files_it_is() {
        let ((certificate, key), (_, other_key)) = (pair(), pair());
        for (certificate, key, client_ca, problem) in [
            (&certificate, &other_key, None, "certificate and key: "),
            (&"x".to_owned(), &key, None, "certificate: "),
            (&certificate, &"x".to_owned(), None, "key: "),
            (&certificate, &key, Some(b"x".as_slice()), "client authorities: "),
        ] {
            let error = listener_tls(certificate.as_bytes(), key.as_bytes(), client_ca).expect_err("refused");
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
