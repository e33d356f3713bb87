//! A call whose head has been read and that is not answered yet.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use crate::call::request::Head;
use crate::call::responder::Responder;
use crate::connections::ConnectionHandle;
use crate::peer::Peer;
use crate::shared::Shared;
use crate::worker::Worker;

/// A call that is not answered yet.
pub(crate) struct OpenCall {
    pub(crate) worker: Rc<Worker>,
    pub(crate) connection: Rc<ConnectionHandle>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) head: Head,
    pub(crate) headers: HeaderMap,
    pub(crate) responder: Responder,
    pub(crate) deadline: Option<Instant>,
    /// What identifies callers with the same certificate and token; None if nothing does.
    pub(crate) credentials: Option<Bytes>,
    /// The generation of permits in force when it began.
    pub(crate) generation: u64,
}

impl OpenCall {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.worker.shared
    }
}
