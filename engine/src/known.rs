//! Requests that Python knows by a number: those that come again and again, byte for byte, from callers that it let in.
//!
//! Nothing of an answer is here. Python gets the number instead of the call, and decides what the answer is, or wants
//! to see the call after all. Known requests are forgotten when permits or tokens are read anew.
//!
//! A registration in `RocketMQ`'s protocol has a header and a large body. Its key is the header, which has the
//! body's checksum, and its body is compared by a digest. So bodies of unknown headers are not read.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use bytes::Bytes;
use ring::digest::{Digest, SHA256, digest};

use crate::bridge::CallInfo;

/// Longest key, bytes: credentials and request. How many keys there are is Python's to bound.
const MAX_KEY: usize = 2 << 10;

/// The numbers of requests.
#[derive(Debug)]
pub(crate) struct Known {
    /// Whether a request is only known from callers with the same credentials.
    permits: bool,
    numbers: RwLock<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// The generation of permits under which these were given.
    generation: u64,
    by_key: HashMap<Box<[u8]>, (u64, Option<Digest>)>,
}

impl Known {
    pub(crate) fn new(permits: bool) -> Self {
        Self { permits, numbers: RwLock::default() }
    }

    /// The number of a request; None if Python must see it.
    pub(crate) fn number_of(
        &self,
        buffer: &mut Vec<u8>,
        method: u16,
        credentials: Option<&Bytes>,
        request: &[u8],
        body: &[u8],
    ) -> Option<u64> {
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        if numbers.by_key.is_empty() || !self.key_into(buffer, method, credentials, request) {
            return None;
        }
        let (number, expected) = *numbers.by_key.get(buffer.as_slice())?;
        drop(numbers); // a digest takes a millisecond
        (expected.as_ref().map(Digest::as_ref) == digest_of(body).as_ref().map(Digest::as_ref)).then_some(number)
    }

    /// Gives the request of a call a number instead of the one that it had. False if the request is too long, the caller
    /// is not identified, or the call is of older permits.
    pub(crate) fn put(&self, call: &CallInfo, request: &[u8], body: &[u8], number: u64) -> bool {
        let mut key = Vec::new();
        if !self.key_into(&mut key, call.method, call.credentials.as_ref(), request) {
            return false;
        }
        let digest = digest_of(body);
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        if call.generation < numbers.generation {
            return false;
        }
        numbers.by_key.insert(key.into_boxed_slice(), (number, digest));
        true
    }

    /// Forgets all of them.
    pub(crate) fn forget(&self) {
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        numbers.by_key = HashMap::new();
    }

    /// Forgets all of them, and refuses those of calls that permits before this generation admitted from now on.
    pub(crate) fn forget_until(&self, generation: u64) {
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        *numbers = Numbers { generation, by_key: HashMap::new() };
    }

    /// Whether there is a key.
    fn key_into(&self, key: &mut Vec<u8>, method: u16, credentials: Option<&Bytes>, request: &[u8]) -> bool {
        let credentials = match (self.permits, credentials) {
            (true, None) => return false,
            (true, Some(credentials)) => &credentials[..],
            (false, _) => &[],
        };
        if credentials.len() + request.len() > MAX_KEY {
            return false;
        }
        key.clear();
        key.extend_from_slice(&method.to_le_bytes());
        key.extend_from_slice(&(credentials.len() as u64).to_le_bytes()); // or one could end where another's request begins
        key.extend_from_slice(credentials);
        key.extend_from_slice(request);
        true
    }
}

fn digest_of(body: &[u8]) -> Option<Digest> {
    (!body.is_empty()).then(|| digest(&SHA256, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(known: &Known, method: u16, credentials: Option<&Bytes>, request: &[u8]) -> Option<u64> {
        known.number_of(&mut vec![1, 2, 3], method, credentials, request, &[])
    }

    fn put(known: &Known, credentials: Option<&Bytes>, request: &[u8], number: u64, generation: u64) -> bool {
        let call = CallInfo { method: 1, credentials: credentials.cloned(), generation, ..CallInfo::unknown() };
        known.put(&call, request, &[], number)
    }

    #[test]
    fn a_request_is_known_by_its_method_and_its_bytes_until_all_are_forgotten() {
        let known = Known::new(false);
        assert!(put(&known, None, b"request", 7, 0));
        assert_eq!(number(&known, 1, None, b"request"), Some(7));
        assert_eq!(number(&known, 2, None, b"request"), None);
        assert_eq!(number(&known, 1, None, b"requesu"), None);
        assert!(put(&known, None, b"request", 8, 0));
        assert_eq!(number(&known, 1, None, b"request"), Some(8));
        known.forget();
        assert_eq!(number(&known, 1, None, b"request"), None);
    }

    #[test]
    fn with_permits_it_is_known_from_the_same_credentials_only() {
        let (known, mine, yours) = (Known::new(true), Bytes::from_static(b"mine"), Bytes::from_static(b"your"));
        assert!(put(&known, Some(&mine), b"s request", 7, 0));
        assert_eq!(number(&known, 1, Some(&mine), b"s request"), Some(7));
        assert_eq!(number(&known, 1, Some(&yours), b"s request"), None);
        assert_eq!(number(&known, 1, Some(&Bytes::from_static(b"mines")), b" request"), None);
        assert_eq!(number(&known, 1, None, b"s request"), None);
        assert!(!put(&known, None, b"s request", 8, 0));
    }

    #[test]
    fn a_call_that_older_permits_admitted_gets_no_number() {
        let (known, caller) = (Known::new(true), Bytes::from_static(b"caller"));
        assert!(put(&known, Some(&caller), b"request", 7, 1));
        known.forget_until(2);
        assert!(!put(&known, Some(&caller), b"request", 8, 1));
        assert_eq!(number(&known, 1, Some(&caller), b"request"), None);
        assert!(put(&known, Some(&caller), b"request", 9, 2));
    }

    #[test]
    fn a_request_that_is_too_long_is_not_known() {
        let known = Known::new(true);
        let credentials = Bytes::from_static(b"c");
        assert!(put(&known, Some(&credentials), &vec![0; MAX_KEY - 1], 1, 0));
        assert!(!put(&known, Some(&credentials), &vec![0; MAX_KEY], 2, 0));
        assert_eq!(number(&known, 1, Some(&credentials), &vec![0; MAX_KEY]), None);
    }
}
