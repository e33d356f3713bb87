//! Calls as Python sees them: one of them whole, or those of an iteration that it knows by numbers.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use tokio::time::Instant;

use crate::bridge::{CallId, CallInfo};

/// Fields that gRPC itself puts into a request.
const TRANSPORT: [&str; 6] =
    ["te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-message-type"];

/// A call, as long as Python has it. Nothing is converted before it is asked for.
#[pyclass(frozen, name = "Call", module = "namesrv_engine")]
pub(super) struct PyCall(pub(super) Arc<CallInfo>);

#[pymethods]
impl PyCall {
    #[getter]
    fn id(&self) -> CallId {
        self.0.id
    }

    #[getter]
    fn method(&self) -> u16 {
        self.0.method
    }

    /// The request; None if it is a stream.
    #[getter]
    fn request<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.request().map(|request| PyBytes::new(py, &request))
    }

    /// Of a request in `RocketMQ`'s protocol: its connection, the encoding of its header, its header, its body.
    fn frame<'py>(&self, py: Python<'py>) -> Option<(CallId, u8, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (frame, request) = (self.0.frame.as_ref()?, self.0.request()?);
        let (header, body) = request.split_at_checked(frame.header)?;
        Some((frame.connection, frame.encoding, PyBytes::new(py, header), PyBytes::new(py, body)))
    }

    /// Releases the request: Python has a copy.
    fn release_request(&self) {
        self.0.release_request();
    }

    #[getter]
    fn peer(&self) -> &str {
        &self.0.peer.address
    }

    /// The number by which its request is known.
    #[getter]
    fn known(&self) -> Option<u64> {
        self.0.known
    }

    /// The certificate of the connection, DER.
    #[getter]
    fn certificate<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.peer.certificate.as_ref().map(|certificate| PyBytes::new(py, &certificate.der))
    }

    /// What the client sent, name and value as they arrived, without what gRPC itself puts there.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let sent = self.0.headers.iter().filter(|(name, _)| !TRANSPORT.contains(&name.as_str()));
        let pairs: Vec<_> = sent.map(|(name, value)| (name.as_str(), PyBytes::new(py, value.as_bytes()))).collect();
        PyList::new(py, pairs)
    }
}

/// The calls of an iteration that Python knows by their numbers.
#[pyclass(frozen, name = "KnownCalls", module = "namesrv_engine")]
pub(super) struct PyKnown {
    pub(super) calls: Vec<Arc<CallInfo>>,
    pub(super) taken: Instant,
}

#[pymethods]
impl PyKnown {
    /// Their numbers, in the order of their arrival.
    #[getter]
    fn numbers(&self) -> Vec<u64> {
        self.calls.iter().filter_map(|call| call.known).collect()
    }
}
