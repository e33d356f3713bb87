//! Classes of callers: whose calls may be answered from the cache.
//!
//! A caller is known by its credentials: the certificate of its connection and the one `authorization` that it sends.
//! Python decides once which class those belong to; until then, and again when permits or tokens are read anew, it is asked.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, header::AUTHORIZATION};

/// Most credentials that are remembered. Only those that Python accepted are, so that nobody can fill it by inventing some.
const MAX_REMEMBERED: usize = 16_384;

/// The class of all callers where there are no permits.
pub(crate) const EVERYBODY: u32 = 0;

/// The classes of credentials.
#[derive(Debug)]
pub(crate) struct Classes {
    /// None: there are no permits.
    known: Option<RwLock<HashMap<Bytes, u32>>>,
}

impl Classes {
    pub(crate) fn new(permits: bool) -> Self {
        Self { known: permits.then(RwLock::default) }
    }

    /// The class of a caller; None if Python must be asked.
    pub(crate) fn class_of(&self, credentials: Option<&Bytes>) -> Option<u32> {
        let Some(known) = &self.known else { return Some(EVERYBODY) };
        known.read().unwrap_or_else(PoisonError::into_inner).get(credentials?).copied()
    }

    /// What a caller is known by. None where there are no permits, or more than one authorization, which Python refuses.
    pub(crate) fn credentials(&self, headers: &HeaderMap, certificate: Option<&Bytes>) -> Option<Bytes> {
        self.known.as_ref()?;
        let mut tokens = headers.get_all(AUTHORIZATION).iter();
        let (token, more) = (tokens.next(), tokens.next());
        if more.is_some() {
            return None;
        }
        let Some(token) = token else { return Some(certificate.cloned().unwrap_or_default()) };
        let certificate = certificate.map_or(&[][..], |der| der);
        let mut credentials = BytesMut::with_capacity(certificate.len() + 1 + token.len());
        credentials.put_slice(certificate);
        // DER tells its own length, so a certificate alone is never the beginning of one with a token.
        credentials.put_u64(token.len() as u64);
        credentials.put_slice(token.as_bytes());
        Some(credentials.freeze())
    }

    /// Remembers the class of credentials.
    pub(crate) fn set(&self, credentials: Bytes, class: u32) {
        if let Some(known) = &self.known {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MAX_REMEMBERED {
                known.clear();
            }
            known.insert(credentials, class);
        }
    }

    /// Forgets all of them.
    pub(crate) fn forget(&self) {
        if let Some(known) = &self.known {
            known.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(tokens: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for token in tokens {
            headers.append(AUTHORIZATION, http::HeaderValue::from_static(token));
        }
        headers
    }

    #[test]
    fn without_permits_everybody_is_of_one_class() {
        let classes = Classes::new(false);
        assert_eq!(classes.class_of(classes.credentials(&sent(&["x"]), None).as_ref()), Some(EVERYBODY));
    }

    #[test]
    fn with_permits_only_credentials_that_were_accepted_have_a_class_until_it_is_forgotten() {
        let classes = Classes::new(true);
        let certificate = Bytes::from_static(b"der");
        let known = classes.credentials(&sent(&["Bearer x"]), Some(&certificate)).expect("one token");
        assert_eq!(classes.class_of(Some(&known)), None);
        classes.set(known.clone(), 7);
        assert_eq!(classes.class_of(Some(&known)), Some(7));
        for (tokens, certificate) in
            [(&["Bearer y"][..], Some(&certificate)), (&["Bearer x"], None), (&[], Some(&certificate))]
        {
            assert_eq!(classes.class_of(classes.credentials(&sent(tokens), certificate).as_ref()), None);
        }
        classes.forget();
        assert_eq!(classes.class_of(Some(&known)), None);
    }

    #[test]
    fn two_authorizations_are_never_of_a_class() {
        assert_eq!(Classes::new(true).credentials(&sent(&["a", "b"]), None), None);
    }
}
