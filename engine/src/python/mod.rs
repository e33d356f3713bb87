//! What Python sees. Nothing here runs on a thread of the engine.

mod engine;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::accept::tls::listener_tls;
use crate::bridge::Cause;
use crate::grpc::pieces;
use crate::panics::tell_panics_in_lines;
use engine::{PyCall, PyEngine, PyKnown};

// Kinds of events; an iteration of the event loop takes them as numbers.
const CALL: u8 = 0;
const CANCELLED: u8 = 1;
const WRITABLE: u8 = 2;
const MESSAGE: u8 = 3;
const NOTICE: u8 = 4;
const STOPPED: u8 = 5;
const KNOWN: u8 = 6;
const FAILED: u8 = 7;
const LEFT: u8 = 8;

/// Sockets, TLS, HTTP/2, bounds and a cache of answers, outside of the interpreter's lock.
#[pymodule]
fn namesrv_engine(module: &Bound<'_, PyModule>) -> PyResult<()> {
    tell_panics_in_lines();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    for (name, number) in [
        ("CALL", CALL),
        ("CANCELLED", CANCELLED),
        ("WRITABLE", WRITABLE),
        ("MESSAGE", MESSAGE),
        ("NOTICE", NOTICE),
        ("STOPPED", STOPPED),
        ("KNOWN", KNOWN),
        ("FAILED", FAILED),
        ("LEFT", LEFT),
        ("CLOSED_HERE", Cause::ClosedHere as u8),
        ("SERVED_LATE", Cause::ServedLate as u8),
    ] {
        module.add(name, number)?;
    }
    module.add_function(wrap_pyfunction!(check_tls, module)?)?;
    module.add_function(wrap_pyfunction!(end_of_piece, module)?)?;
    module.add_class::<PyCall>()?;
    module.add_class::<PyKnown>()?;
    module.add_class::<PyEngine>()
}

/// Raises `ValueError` if an engine cannot use these: certificate and key that it shows, and authorities of clients.
#[pyfunction]
#[pyo3(signature = (certificate, key, client_ca=None))]
fn check_tls(certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> PyResult<()> {
    listener_tls(certificate, key, client_ca).map(drop).map_err(PyValueError::new_err)
}

/// Where a piece of a protobuf message ends, so that all pieces, merged one after the other, are the same message.
#[pyfunction]
fn end_of_piece(message: &[u8], begin: usize, least_bytes: usize, most_fields: usize) -> usize {
    pieces::end_of_piece(message, begin.min(message.len()), least_bytes, most_fields)
}
