//! gRPC's unary calls over HTTP/2. What counts is grpc-status: an answer with HTTP 200 may be an error.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderName, Method, Request};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::outcome::{Ended, LOST};
use crate::plan::Plan;
use crate::script::{Call, Script};

/// What a client that means well sends; no call may take longer.
const TIMEOUT: &str = "30S";
/// So large that answers never wait for a window update.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// One connection, or one user of it.
#[derive(Clone)]
pub struct GrpcConnection {
    sender: SendRequest<Bytes>,
    /// The headers of each kind of call.
    requests: Rc<Vec<Request<()>>>,
}

impl GrpcConnection {
    pub async fn open<T>(plan: &Plan, script: &Script, stream: T) -> io::Result<GrpcConnection>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (sender, driver) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake(stream)
            .await
            .map_err(io::Error::other)?;
        tokio::task::spawn_local(async move {
            // Each call in flight fails by itself when the connection ends.
            let _ = driver.await;
        });
        let scheme = if plan.tls_ca.is_some() { "https" } else { "http" };
        let requests = script.kinds.iter().map(|path| {
            Request::builder()
                .method(Method::POST)
                .uri(format!("{scheme}://{}{path}", plan.target))
                .header("te", "trailers")
                .header("content-type", "application/grpc")
                .header("grpc-timeout", TIMEOUT)
                .header("user-agent", "load-generator")
                .body(())
                .map_err(io::Error::other)
        });
        Ok(GrpcConnection {
            sender,
            requests: Rc::new(requests.collect::<io::Result<_>>()?),
        })
    }

    pub async fn call(&mut self, call: &Call) -> Ended {
        self.exchange(call).await.unwrap_or_else(|error| {
            let reason = error.reason();
            Some(reason.map_or_else(|| LOST.to_owned(), |reason| format!("HTTP/2 {reason:?}")))
        })
    }

    /// Returns the grpc-status, if it is that of an error.
    async fn exchange(&mut self, call: &Call) -> Result<Ended, h2::Error> {
        poll_fn(|cx| self.sender.poll_ready(cx)).await?;
        let request = self.requests[call.kind].clone();
        let (answer, mut stream) = self.sender.send_request(request, false)?;
        stream.send_data(call.data.clone(), true)?;
        let (head, mut body) = answer.await?.into_parts();
        while let Some(chunk) = body.data().await {
            body.flow_control().release_capacity(chunk?.len())?;
        }
        let trailers = body.trailers().await?;
        Ok(error_of(trailers.as_ref().unwrap_or(&head.headers)))
    }
}

fn error_of(headers: &HeaderMap) -> Ended {
    let status = headers.get(GRPC_STATUS).and_then(|value| value.to_str().ok());
    match status {
        Some("0") => None,
        other => Some(format!("grpc-status {}", other.unwrap_or("missing"))),
    }
}
