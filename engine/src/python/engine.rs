//! The engine and its calls as Python sees them: each method is a few lines that convert between values of Python and Rust.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use tokio::time::Instant;

use super::{CALL, CANCELLED, FAILED, KNOWN, LEFT, MESSAGE, NOTICE, STOPPED, WRITABLE};
use crate::accept::{Door, TlsMode};
use crate::bridge::{CallId, CallInfo, Command, Event, Notice};
use crate::cache::Answer;
use crate::engine::{Engine, Setup};
use crate::grpc::status::{Explanation, Statuses, trailers as status_trailers};
use crate::ledger::Kind;
use crate::limits::Limits;
use crate::remoting::answer::{FrameAnswer, GoAway};
use crate::shared::{Method, Requests};

/// The engine, as the event loop has it.
#[pyclass(frozen, name = "Engine", module = "namesrv_engine")]
pub(super) struct PyEngine {
    engine: Arc<Engine>,
    /// Where Python sends listening sockets to, and where they come out: a descriptor by its number would need trust.
    handover: (Mutex<Option<OwnedFd>>, OwnedFd),
}

/// A dependency of an answer: read where Python has it, since a change may name ten thousand in one step.
type Dependency = PyBackedStr;

/// A method: path, whether its request streams, whether answers are kept, its largest message, and what its calls are
/// counted as.
type MethodTuple = (String, bool, bool, usize, PyBackedStr);

/// Requests of `RocketMQ`'s protocol: their code or None for all others, whether answers are kept, and whether some are known
/// by numbers.
type RequestsTuple = (Option<i32>, bool, bool);

#[pymethods]
impl PyEngine {
    #[new]
    #[pyo3(signature = (methods, requests, *, limits, threads, permits, follows_traces, explanations))]
    fn new(
        methods: Vec<MethodTuple>,
        requests: Vec<RequestsTuple>,
        limits: Limits,
        threads: usize,
        permits: bool,
        follows_traces: bool,
        explanations: ([Explanation; 4], [Explanation; 4], Explanation),
    ) -> PyResult<Self> {
        let methods = methods.into_iter().map(|(path, streams_in, cached, max_message, counted_as)| {
            let counted_as = match &*counted_as {
                "calls" => Kind::Calls,
                "health_calls" => Kind::HealthCalls,
                "reflection_calls" => Kind::ReflectionCalls,
                other => return Err(PyValueError::new_err(format!("calls are not counted as {other}"))),
            };
            Ok(Method { path, streams_in, cached, max_message, counted_as, ..Method::default() })
        });
        let requests = requests.into_iter().map(|(code, cached, may_be_known)| {
            Ok(Method { cached, requests: Some(Requests { code, may_be_known }), ..Method::default() })
        });
        let engine = Engine::new(Setup {
            limits,
            methods: methods.chain(requests).collect::<PyResult<_>>()?,
            threads,
            permits,
            follows_traces,
            statuses: Statuses::new(explanations.0, explanations.1, explanations.2),
        })?;
        let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self { engine: Arc::new(engine), handover: (Mutex::new(Some(theirs)), ours) })
    }

    /// The end of a pair of sockets over which Python sends listeners (`socket.send_fds`), once. It is the caller's.
    fn handover(&self) -> PyResult<RawFd> {
        let theirs = self.handover.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        theirs.map(IntoRawFd::into_raw_fd).ok_or_else(|| PyValueError::new_err("it was handed over already"))
    }

    /// Takes the listener that was sent last: of gRPC, or of `RocketMQ`'s protocol in one of its modes of TLS.
    #[pyo3(signature = (remoting_tls=None))]
    fn listen(&self, remoting_tls: Option<&str>) -> PyResult<()> {
        let door = match remoting_tls {
            None => Door::Grpc,
            Some("disabled") => Door::Remoting(TlsMode::Disabled),
            Some("permissive") => Door::Remoting(TlsMode::Permissive),
            Some("enforcing") => Door::Remoting(TlsMode::Enforcing),
            Some(other) => return Err(PyValueError::new_err(format!("there is no mode {other} of TLS"))),
        };
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(&self.handover.1, &mut [std::io::IoSliceMut::new(&mut byte)], &mut control, flags)
            .map_err(|error| PyOSError::new_err(format!("no listener was sent: {error}")))?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(sockets) = message {
                for socket in sockets {
                    self.engine.listen(socket, door)?;
                }
            }
        }
        Ok(())
    }

    /// Has connections talk TLS from now on; raises `ValueError` if these cannot be used.
    #[pyo3(signature = (certificate, key, client_ca=None))]
    fn set_tls(&self, certificate: &[u8], key: &[u8], client_ca: Option<&[u8]>) -> PyResult<()> {
        self.engine.set_tls(certificate, key, client_ca).map_err(PyValueError::new_err)
    }

    /// Sets the answer to requests that arrive while the engine drains, with each encoding of its header.
    #[allow(clippy::needless_pass_by_value)] // Python's list becomes a vector
    fn set_go_away(&self, later_than: i32, answers: Vec<Vec<u8>>) -> PyResult<()> {
        let answers = answers.iter().map(|answer| FrameAnswer::of(copied(answer))).collect::<Option<_>>();
        let answers = answers.ok_or_else(|| PyValueError::new_err("an answer is no frame"))?;
        self.engine.set_go_away(GoAway { later_than, answers });
        Ok(())
    }

    fn start(&self) -> PyResult<()> {
        Ok(self.engine.start()?)
    }

    fn fileno(&self) -> RawFd {
        self.engine.wakeup().as_raw_fd()
    }

    /// The oldest events: (kind, call, what comes with it). Calls that Python knows are one event, the last.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let events = self.engine.take();
        let list = PyList::empty(py);
        let mut known = Vec::new();
        for event in events {
            match event {
                Event::Call(info) if info.known.is_some() => known.push(info),
                Event::Call(info) => list.append((CALL, info.id, Py::new(py, PyCall(info))?))?,
                Event::Cancelled(id, cause) => list.append((CANCELLED, id, cause as u8))?,
                Event::Left(connection, cause) => list.append((LEFT, connection, cause as u8))?,
                Event::Writable(id) => list.append((WRITABLE, id, py.None()))?,
                Event::Message(id, message) => {
                    list.append((MESSAGE, id, message.map(|message| PyBytes::new(py, &message.bytes))))?;
                }
                Event::Notice(Notice { kind, peer, text, not_told }) => {
                    list.append((NOTICE, 0, (kind, peer, text, not_told)))?;
                }
                Event::Failed(cause) => list.append((FAILED, 0, cause))?,
                Event::Stopped => list.append((STOPPED, 0, py.None()))?,
            }
        }
        if !known.is_empty() {
            list.append((KNOWN, 0, Py::new(py, PyKnown { calls: known, taken: Instant::now() })?))?;
        }
        Ok(list)
    }

    /// Ends a unary call well. This, and what follows, waits for `flush`.
    fn answer(&self, number: CallId, message: &[u8]) {
        self.engine.command(number, Command::Answer(copied(message)));
    }

    /// Sends one message of a stream. The next one must wait for WRITABLE.
    fn write(&self, number: CallId, message: &[u8]) {
        self.engine.command(number, Command::Write(copied(message), 1));
    }

    /// Sends the same message to many streams.
    #[allow(clippy::needless_pass_by_value)] // Python's list becomes a vector
    fn write_all(&self, ids: Vec<CallId>, message: &[u8]) {
        self.engine.write_all(&ids, &copied(message));
    }

    /// Ends a call. The reader has the linger time to take the last message.
    fn finish(&self, number: CallId, code: u8, details: &str, metadata: Vec<(String, Vec<u8>)>) -> PyResult<()> {
        let trailers = fields(status_trailers(code, details), metadata)?;
        self.engine.command(number, Command::Finish(trailers));
        Ok(())
    }

    /// Asks for the next message of a request that streams.
    fn read(&self, number: CallId) {
        self.engine.command(number, Command::Read);
    }

    fn flush(&self) {
        self.engine.flush();
    }

    /// Keeps an answer that was computed at a generation: what follows the header, and its dependencies.
    fn put(&self, call: &PyCall, tail: &[u8], dependencies: Vec<Dependency>, generation: u64) -> bool {
        self.engine.put(&call.0, Answer::Message(copied(tail)), dependencies, generation)
    }

    /// Keeps the status that something does not exist, which has no header.
    fn put_absence(
        &self,
        call: &PyCall,
        code: u8,
        details: &str,
        metadata: Vec<(String, Vec<u8>)>,
        dependencies: Vec<Dependency>,
        generation: u64,
    ) -> PyResult<bool> {
        let trailers = fields(status_trailers(code, details), metadata)?;
        Ok(self.engine.put(&call.0, Answer::Absence(Arc::new(trailers)), dependencies, generation))
    }

    /// Keeps the answer to a request in `RocketMQ`'s protocol, as it was encoded.
    fn put_frame(&self, call: &PyCall, answer: &[u8], dependencies: Vec<Dependency>, generation: u64) -> bool {
        FrameAnswer::of(copied(answer))
            .is_some_and(|answer| self.engine.put(&call.0, Answer::Frame(answer), dependencies, generation))
    }

    /// Ends a connection of `RocketMQ`'s protocol once its answers have left.
    fn close(&self, connection: CallId) {
        self.engine.command(connection, Command::Close);
    }

    /// Makes answers stale that have one of the dependencies; all that follow carry the header. Returns the generation.
    #[pyo3(signature = (dependencies, header=None))]
    fn change(&self, dependencies: Vec<Dependency>, header: Option<&[u8]>) -> u64 {
        self.engine.cache().change(dependencies, header.map(copied))
    }

    /// Forgets every answer. Returns the generation.
    fn clear(&self) -> u64 {
        self.engine.cache().clear()
    }

    fn set_class(&self, call: &PyCall, number: u32) {
        self.engine.set_class(&call.0, number);
    }

    /// Has every caller be decided on again, because permits were read anew. Thread-safe.
    fn renew_permits(&self) {
        self.engine.renew_permits();
    }

    /// Has calls like this one, from the same caller, come by this number. Whether they will.
    fn know(&self, call: &PyCall, number: u64) -> bool {
        self.engine.know(&call.0, number)
    }

    fn forget_known(&self) {
        self.engine.forget_known();
    }

    /// Ends those of the calls well that have an answer. Returns the others.
    fn answer_known(&self, known: &PyKnown, answers: &Bound<'_, PyList>) -> PyResult<Vec<PyCall>> {
        if answers.len() != known.calls.len() {
            return Err(PyValueError::new_err(format!("{} answers to {} calls", answers.len(), known.calls.len())));
        }
        let (mut answered, mut others) = (Vec::with_capacity(known.calls.len()), Vec::new());
        let mut last: Option<(Bound<'_, PyAny>, Bytes)> = None;
        for (call, answer) in known.calls.iter().zip(answers) {
            if answer.is_none() {
                others.push(PyCall(Arc::clone(call)));
                continue;
            }
            let message = match &last {
                Some((same, message)) if same.is(&answer) => message.clone(),
                _ => copied(answer.cast::<PyBytes>()?.as_bytes()),
            };
            last = Some((answer, message.clone()));
            answered.push((&**call, message));
        }
        self.engine.answer_known(answered, known.taken.elapsed());
        Ok(others)
    }

    fn stop(&self, stage: u8) {
        self.engine.stop(stage);
    }

    /// Waits for the threads, which end soon after STOPPED or stage 3.
    fn join(&self, py: Python<'_>) {
        let engine = Arc::clone(&self.engine);
        py.detach(move || engine.join());
    }

    fn stats(&self) -> HashMap<&'static str, u64> {
        self.engine.stats().into_iter().collect()
    }

    /// HTTP/2 errors that were reported to clients, by reason.
    fn http2_errors(&self) -> HashMap<String, u64> {
        self.engine.http2_errors().into_iter().collect()
    }

    /// Answers from the cache, of each method: with content, that something does not exist, and the nanoseconds of both.
    fn hits(&self) -> Vec<(u64, u64, u64)> {
        self.engine.hits()
    }
}

/// Bytes that Python does not share with us: what it counts references of must not reach another thread.
fn copied(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn fields(mut fields: HeaderMap, metadata: Vec<(String, Vec<u8>)>) -> PyResult<HeaderMap> {
    for (name, value) in metadata {
        let problem = |error: String| PyValueError::new_err(format!("metadata {name}: {error}"));
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|error| problem(error.to_string()))?;
        let value = HeaderValue::from_maybe_shared(Bytes::from(value)).map_err(|error| problem(error.to_string()))?;
        fields.append(key, value);
    }
    Ok(fields)
}

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
