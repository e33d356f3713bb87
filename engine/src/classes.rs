//! Classes of callers: which calls may be answered from the cache.
//!
//! A caller is known by its credentials: the certificate of its connection and the one `authorization` that it sends.
//! Python decides which class they belong to. The engine asks it again once permits or tokens are read anew.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, header::AUTHORIZATION};

/// Most credentials that are remembered. Only those that Python accepted are, so inventing some does not fill it.
const MAX_REMEMBERED: usize = 16_384;

/// The class of all callers where there are no permits.
pub(crate) const EVERYBODY: u32 = 0;

/// The one scheme of `authorization`, which clients may spell in upper or lower case.
const BEARER: &[u8] = b"bearer ";

/// The credentials of all callers of `RocketMQ`'s protocol that show no certificate. All credentials of gRPC have another length.
const WITHOUT_CERTIFICATE: &[u8] = b"remoting";

/// The classes of credentials.
#[derive(Debug)]
pub(crate) struct Classes {
    /// None: there are no permits.
    known: Option<RwLock<Remembered>>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// The generation of permits under which these were decided.
    generation: u64,
    classes: HashMap<Bytes, u32>,
}

impl Classes {
    pub(crate) fn new(permits: bool) -> Self {
        Self { known: permits.then(RwLock::default) }
    }

    /// The class of a caller; None if Python must be asked.
    pub(crate) fn class_of(&self, credentials: Option<&Bytes>) -> Option<u32> {
        let Some(known) = &self.known else { return Some(EVERYBODY) };
        known.read().unwrap_or_else(PoisonError::into_inner).classes.get(credentials?).copied()
    }

    /// What identifies a caller, given the digest of its certificate. None where there are no permits, and for an authorization that
    /// Python refuses: a second one, or one of another scheme than Bearer.
    pub(crate) fn credentials(&self, headers: &HeaderMap, certificate: Option<&Bytes>) -> Option<Bytes> {
        self.known.as_ref()?;
        let mut tokens = headers.get_all(AUTHORIZATION).iter();
        let (token, more) = (tokens.next(), tokens.next());
        if more.is_some() {
            return None;
        }
        let Some(token) = token else { return Some(certificate.cloned().unwrap_or_default()) };
        let (token, certificate) = (token_of(token.as_bytes())?, certificate.map_or(&[0; 32][..], |digest| digest));
        let mut credentials = BytesMut::with_capacity(8 + token.len() + certificate.len());
        // Not even an empty token gives what a certificate alone or another token does.
        credentials.put_u64(token.len() as u64);
        credentials.put_slice(token);
        credentials.put_slice(certificate);
        Some(credentials.freeze())
    }

    /// What identifies the caller behind a connection of `RocketMQ`'s protocol, which has no tokens. None where there are no
    /// permits.
    pub(crate) fn of_frames(&self, certificate: Option<&Bytes>) -> Option<Bytes> {
        self.known.as_ref()?;
        Some(certificate.cloned().unwrap_or(Bytes::from_static(WITHOUT_CERTIFICATE)))
    }

    /// Remembers the class of credentials, which a call of a generation of permits showed. Drops it if they are older.
    pub(crate) fn set(&self, credentials: Bytes, class: u32, generation: u64) {
        let Some(known) = &self.known else { return };
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        if generation < known.generation {
            return;
        }
        if known.classes.len() >= MAX_REMEMBERED && !known.classes.contains_key(&credentials) {
            let any = known.classes.keys().next().cloned();
            any.and_then(|any| known.classes.remove(&any));
        }
        known.classes.insert(credentials, class);
    }

    /// Forgets all of them, and refuses those of generations before this one from now on.
    pub(crate) fn forget(&self, generation: u64) {
        if let Some(known) = &self.known {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            *known = Remembered { generation, classes: HashMap::new() };
        }
    }
}

/// The token of an `authorization`; None if it is of another scheme than Bearer.
fn token_of(authorization: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = authorization.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
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
    fn with_permits_only_credentials_that_were_accepted_have_a_class_until_it_is_forgotten() {
        let classes = Classes::new(true);
        let certificate = Bytes::from_static(b"der");
        let known = classes.credentials(&sent(&["Bearer x"]), Some(&certificate)).expect("one token");
        assert_eq!(classes.class_of(Some(&known)), None);
        classes.set(known.clone(), 7, 0);
        for spelling in ["Bearer x", "bearer x", "BEARER x"] {
            let same = classes.credentials(&sent(&[spelling]), Some(&certificate));
            assert_eq!(classes.class_of(same.as_ref()), Some(7), "{spelling}");
        }
        for (tokens, certificate) in
            [(&["Bearer y"][..], Some(&certificate)), (&["Bearer x"], None), (&[], Some(&certificate))]
        {
            assert_eq!(classes.class_of(classes.credentials(&sent(tokens), certificate).as_ref()), None);
        }
        classes.forget(1);
        assert_eq!(classes.class_of(Some(&known)), None);
    }

    #[test]
    fn two_authorizations_and_other_schemes_are_never_of_a_class() {
        for tokens in [&["Bearer a", "Bearer b"][..], &["a"], &["Basic a"], &["Bearer"], &[""]] {
            assert_eq!(Classes::new(true).credentials(&sent(tokens), None), None, "{tokens:?}");
        }
    }

    #[test]
    fn when_all_places_are_taken_a_new_caller_takes_one_and_the_others_stay() {
        let classes = Classes::new(true);
        for number in 0..=MAX_REMEMBERED {
            classes.set(Bytes::from(number.to_string()), 7, 0);
        }
        let known = (0..=MAX_REMEMBERED).filter(|n| classes.class_of(Some(&Bytes::from(n.to_string()))).is_some());
        assert_eq!(known.count(), MAX_REMEMBERED);
        assert_eq!(classes.class_of(Some(&Bytes::from(MAX_REMEMBERED.to_string()))), Some(7));
    }
}
